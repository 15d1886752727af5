"""The Lua scripts, each beside the typed function that calls it; see PROTOCOL.md.

`<name>.lua` is the script, `<name>.py` packs its arguments and parses its reply, `common/` holds
the Lua functions that several scripts use, `loader.py` loads and `runner.py` calls them.
"""
