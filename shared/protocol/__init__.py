"""What stands in Redis and what travels through it; PROTOCOL.md describes it on one page."""
