"""A server: models behind HTTP, with bounds on everything that is asked of them."""
