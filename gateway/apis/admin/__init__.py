"""Operators' calls: pools, workers, tenants."""
