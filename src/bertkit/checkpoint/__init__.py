"""Loading, saving, and downloading of checkpoints. No code from the files is run."""
