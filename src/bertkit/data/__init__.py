"""Data pipeline: file readers, tokenized corpora, samples, masking, shuffling, and batches."""
