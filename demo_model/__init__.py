"""How the demo model (`worker/demo`) is trained. It is not installed."""
