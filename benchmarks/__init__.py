"""Benchmarks of bertkit against other libraries: `python -m benchmarks`."""
