"""The right answer to every request, and the comparison of what a client and Redis have with it."""
