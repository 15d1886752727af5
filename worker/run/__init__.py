"""A worker's life and the run of one job."""
