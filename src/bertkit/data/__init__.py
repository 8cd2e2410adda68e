"""From files to batches: readers, token corpora, samples, masks, order."""
