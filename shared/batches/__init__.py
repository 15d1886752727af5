"""Batches: files whose lines are jobs."""
