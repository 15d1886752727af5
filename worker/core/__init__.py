"""A worker process: claim, run, publish and finish jobs."""
