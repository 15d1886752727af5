"""Measurements of Flotilla beside other ways to serve the same engine.

`python -m load_tests -h` lists the commands; README.md describes them.
"""
