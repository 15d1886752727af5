"""Parts of a worker that can be left out: see worker/core/plugin.py."""
