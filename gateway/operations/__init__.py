"""Operator calls: sent to all workers of a pool, answered when all have answered."""
