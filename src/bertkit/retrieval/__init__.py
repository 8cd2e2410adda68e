"""A search engine over one's own documents: stores of passages, and what asks them."""
