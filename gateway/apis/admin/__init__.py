"""Operators' calls: pools, workers, dead letters, tenants."""
