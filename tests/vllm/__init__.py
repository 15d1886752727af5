"""Tests with real vLLM and models that are made on the spot."""
