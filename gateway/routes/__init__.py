"""One file for each group of routes of the HTTP API."""
