"""All steps from text to a fine-tuned model, with a report."""

from bertkit.registry import Extension

EXTENSION = Extension("demo")
