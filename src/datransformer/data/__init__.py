"""Files to batches: readers, vocabulary, word vectors, batching, the built-in probe. Knows nothing of models."""
