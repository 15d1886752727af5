"""Runs a program as a later release of the same format: other scripts, another version.

`next_release.py PYTHON -m MODULE ARGUMENT...`, as `tests.harness.fleet.Stack` starts its processes
if this is its `launcher`.
"""

import runpy
import sys
from importlib import metadata
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[3])  # as `python -m` in the repository's root

from shared.store import scripts  # noqa: E402

own_function, own_version = scripts._function, metadata.version
scripts._function = lambda name: f"{own_function(name)}-- of the next release\n"
metadata.version = lambda name: "99.0.0" if name == "flotilla" else own_version(name)
_, _, module, *arguments = sys.argv[1:]
sys.argv = [module, *arguments]
runpy.run_module(module, run_name="__main__", alter_sys=True)
