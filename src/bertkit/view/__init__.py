"""HTML pages, charts, and the data of the model inspector."""
