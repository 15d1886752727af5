"""`rolling`: replaces the workers of a fleet under load, one after the other."""
