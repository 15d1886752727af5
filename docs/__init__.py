"""The documentation site: pages, pictures, and what builds the rest from the code."""
