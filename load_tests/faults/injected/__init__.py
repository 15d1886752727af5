"""Faults injected into a running fleet: a row of figures for each."""
