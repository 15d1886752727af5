"""The systems that are measured: one file each. `load_tests/systems/registry.py` lists them."""
