"""A worker process: its life cycle, the jobs it runs, its health server."""
