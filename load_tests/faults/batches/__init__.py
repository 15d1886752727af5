"""Batches under faults: each line has one result, whatever is killed, stopped or away."""
