"""Which jobs a worker takes, and how it keeps them."""
