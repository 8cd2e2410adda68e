"""The parts of a network: attention and its kernels, embedding, feed-forward, block."""
