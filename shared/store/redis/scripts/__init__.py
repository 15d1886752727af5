"""The Lua scripts; see PROTOCOL.md.

`common/` holds the Lua functions that several scripts use, `loader.py` loads the scripts and
`runner.py` calls them. Arguments are packed and replies are parsed where a script is called, of the
largest in `submit.py`, `acquire.py` and `emit.py`.
"""
