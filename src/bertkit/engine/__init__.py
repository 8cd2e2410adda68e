"""Fast inference on any number of texts."""
