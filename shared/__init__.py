"""What gateway and worker share: states, jobs, keys, scripts, queue, log, channel, registry.

Imports neither of them, and no library of only one of them (fastapi, celery, vllm, torch).
"""
