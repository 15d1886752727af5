"""Faults of a Redis Cluster under load."""
