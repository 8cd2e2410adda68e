"""Cleaning of raw text for pretraining."""

from bertkit.registry import Extension

EXTENSION = Extension("cleaning")
