"""What a model does with a text, to be looked at in a browser."""
