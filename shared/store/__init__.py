"""Where jobs, their logs and the queue are kept."""
