"""The HTTP server's side of a request: connections, authentication, limits, body, errors."""
