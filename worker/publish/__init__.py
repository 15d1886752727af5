"""The output of jobs on its way to Redis."""
