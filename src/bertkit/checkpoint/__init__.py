"""Loading, saving, and downloading of checkpoints, without running code from files."""
