"""Anthropic's Messages API, and its batches."""
