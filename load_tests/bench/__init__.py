"""`run` and `compare`: CPU time and latency of each system at points of load, judged by targets."""
