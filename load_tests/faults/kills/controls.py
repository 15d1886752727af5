"""Negative controls."""
CONTROLS = {}
