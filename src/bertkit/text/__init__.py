"""Tokenizers, which convert text to ids and ids to text. This package does not import torch."""
