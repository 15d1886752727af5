"""Middlewares for vLLM's `--middleware`, to copy from (docs/pages/operate/middleware.md)."""
