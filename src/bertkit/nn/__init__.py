"""Layers and kernels: attention, embeddings, feed-forward networks, norms, losses."""
