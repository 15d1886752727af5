"""Breaks a fleet on purpose and counts what its clients see: `python -m load_tests faults`."""
