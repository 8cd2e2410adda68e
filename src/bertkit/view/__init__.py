"""HTML pages and charts, and the data that the model inspector shows."""
