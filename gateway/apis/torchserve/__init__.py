"""TorchServe's calls of vLLM's endpoints, and its lists of models."""
