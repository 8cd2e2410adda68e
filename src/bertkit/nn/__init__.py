"""Layers and kernels: attention, embeddings, feed-forward networks, norms, and losses."""
