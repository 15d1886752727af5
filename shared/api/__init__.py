"""The HTTP API as gateway and workers agree on it: endpoints and errors."""
