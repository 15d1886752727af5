"""Every metric: name, help text, labels and buckets.

Names have the prefix `flotilla_` and base units. No label holds a job, a key or a prompt. vLLM's
own `vllm:*` metrics are served beside the worker's, unchanged.
"""
