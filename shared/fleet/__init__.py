"""The pools, models and workers of a fleet, and how many workers a pool should have."""
