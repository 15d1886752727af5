"""Embeddings, classes, scores and tokens."""
