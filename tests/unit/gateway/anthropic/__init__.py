"""Anthropic's batches, without a fleet."""
