"""An HTTP server for models, its client, and its pages."""

from bertkit.registry import Extension

EXTENSION = Extension("serving")
