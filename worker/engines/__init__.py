"""The one plug point: an engine answers OpenAI requests over ASGI and tells its load."""
