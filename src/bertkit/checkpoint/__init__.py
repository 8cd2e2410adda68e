"""Loading, saving, and downloading of checkpoints, without pickle and without remote code."""
