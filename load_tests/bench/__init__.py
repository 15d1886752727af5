"""`run`: each system's CPU time and latency at points of load, checked by targets."""
