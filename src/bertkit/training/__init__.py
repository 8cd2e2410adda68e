"""Training: loop, optimizer, schedule, precision, checkpoints and journal."""
