"""Folders of weights: read, written, fetched from a hub. Never a pickle, never code."""
