"""Implementations of the commands and of the functions of the Python API."""
