"""Training objectives: functions that compute a loss from a model and a batch."""
