"""The HTTP API as its routes describe it: what an API registers, schemas, errors, OpenAPI."""
