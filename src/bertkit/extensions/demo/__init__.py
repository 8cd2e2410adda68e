"""A demo of all steps from text to a fine-tuned model, with and without pretraining."""

from bertkit.registry import Extension

EXTENSION = Extension("demo")
