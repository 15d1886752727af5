"""vLLM 0.32's HTTP server over the simulated engine: the same work per request and per token."""
