"""vLLM in the worker's process. No other folder imports vllm."""
