"""OpenAI's endpoints, as vLLM serves them."""
