"""Pauses of worker, Redis and gateway around the length of a lease."""
