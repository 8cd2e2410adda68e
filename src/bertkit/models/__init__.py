"""Models: the Transformer, heads, and `Model`, which combines an encoder with named heads."""
