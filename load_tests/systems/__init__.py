"""The measured systems, one file each; `registry.py` lists them."""
