"""Addresses inside a network, on real interfaces: none is called unless the operator allows it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.webhook_addresses import HOSTS, PUBLIC
from tests.harness.settings import ROOT

_OWN_NETWORK = ("unshare", "--net")


def _may_have_one() -> bool:
    tools = all(map(shutil.which, ("unshare", "ip")))
    return tools and not subprocess.run([*_OWN_NETWORK, "true"], capture_output=True).returncode


@pytest.mark.skipif(not _may_have_one(), reason="needs unshare, ip, and leave to use them")
def test_no_address_inside_is_called_but_those_that_are_allowed(tmp_path: Path) -> None:
    command = [*_OWN_NETWORK, sys.executable, "-m", "tests.api.webhook_addresses", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    reached = json.loads(done.stdout)
    assert len(HOSTS) >= 20
    assert reached == {
        "nothing": [PUBLIC],
        "one": ["[::ffff:10.0.0.1]", "10.0.0.1", "[64:ff9b::a00:1]", PUBLIC],
        "all": [*HOSTS, PUBLIC],  # nothing but the check was in the way
    }
