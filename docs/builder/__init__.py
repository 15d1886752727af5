"""Makes pages from the code and from files of the repository; MkDocs calls hooks.py."""
