"""What processes say that do not start."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from tests.harness.fleet import Stack
from tests.harness.fork import MODULES
from tests.harness.settings import child_environment
from tests.harness.up import REAL

PROGRAMS = (*MODULES, "flotilla up")
_END_S = 120.0


def refusal(program: str, redis_url: str, folder: Path, **settings: object) -> str:
    """What one of PROGRAMS says that does not start with this Redis."""
    settings = {"engine": "simulated", "port": 0, **settings}
    if program in MODULES:
        with contextlib.closing(Stack(redis_url, folder)) as stack:
            process = stack.start(program, **settings)
            status, said = process.popen.wait(_END_S), process.log.read_text()
    else:
        ended = subprocess.run(
            REAL,
            env=child_environment(redis_url=redis_url, **settings),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_END_S,
            check=False,
        )
        status, said = ended.returncode, ended.stderr
    assert status == 2, said
    assert "Traceback" not in said
    return said
