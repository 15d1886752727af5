"""The workers of a fleet, its Redis servers, and how many workers a pool should have."""
