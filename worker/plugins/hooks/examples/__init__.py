"""Hooks to copy from: retrieval before the model, checks of requests and answers."""
