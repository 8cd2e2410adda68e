"""What a model learns from: functions of (model, batch)."""
