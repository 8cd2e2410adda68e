"""The loop and what it needs: optimizer, schedule, precision, checkpoints, journal."""
