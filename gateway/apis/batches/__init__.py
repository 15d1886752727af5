"""Batches: files of requests that run as jobs in the lane flex."""
