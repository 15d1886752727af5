"""Runs a program as a release of another format version.

`other_format.py VERSION PYTHON -m MODULE ARGUMENT...`, as `tests.harness.fleet.Stack` starts its
processes if this is its `launcher`.
"""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[3])  # as `python -m` in the repository's root

from shared.store import health  # noqa: E402

number, _, _, module, *arguments = sys.argv[1:]
health.FORMAT_VERSION = int(number)
sys.argv = [module, *arguments]
runpy.run_module(module, run_name="__main__", alter_sys=True)
