"""What gateway and worker agree on: states, jobs, keys, scripts, queue, log, channel, registry.

Imports neither side, and nothing that only one side needs (no fastapi, celery, vllm or torch).
"""
