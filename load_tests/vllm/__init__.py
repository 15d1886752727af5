"""`vllm`: real vLLM with the demo model, its own server beside a fleet."""
