"""The HTTP API: a folder for each API, and the description of all of them."""
