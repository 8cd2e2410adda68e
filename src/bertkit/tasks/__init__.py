"""Tasks: examples, what is learned from them, answers, scores."""
