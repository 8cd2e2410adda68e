"""Whole models: the Transformer encoder, heads, and `Model`, an encoder with named heads."""
