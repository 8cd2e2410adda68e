"""All steps from text to a fine-tuned model, with a comparison."""

from bertkit.registry import Extension

EXTENSION = Extension("demo")
