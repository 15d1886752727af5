"""What Flotilla costs and how fast it is, beside other ways to serve the same engine.

`python -m load_tests run` measures; see `load_tests/__main__.py`.
"""
