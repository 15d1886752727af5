"""`flotilla batch`: files of requests, run as batches."""
