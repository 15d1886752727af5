"""`flotilla up` with stand-ins: `run_up.py WORKERS FLAG...`; the flags go to the workers.

`maintenance-die` is for the maintenance process.
"""

import asyncio
import sys
from pathlib import Path

from gateway.cli.terminal import alone_in_foreground
from gateway.launcher.preflight import check_and_run
from gateway.launcher.supervisor import Commands
from shared.platform.settings import load_settings
from tests.harness.settings import Settings

server = str(Path(__file__).with_name("server.py"))
commands = Commands(
    gateway=(sys.executable, server, "gateway"),
    worker=(sys.executable, server, "worker", *sys.argv[2:]),
    maintenance=(
        sys.executable,
        server,
        "maintenance",
        *(["dies"] if "maintenance-die" in sys.argv else []),
    ),
)
with alone_in_foreground():
    status = asyncio.run(
        check_and_run(load_settings(Settings), int(sys.argv[1]), commands=commands)
    )
sys.exit(status)
