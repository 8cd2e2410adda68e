"""Data pipeline: readers, token corpora, samples, masking, shuffling and batches."""
