"""Addresses inside a network, on real interfaces: none is called unless the operator allows it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from tests.e2e.webhooks.inside import HOSTS, PUBLIC
from tests.harness.settings import ROOT

_OWN_NETWORK = ("unshare", "--net")


def _may_have_one() -> bool:
    tools = all(map(shutil.which, ("unshare", "ip")))
    return tools and not subprocess.run([*_OWN_NETWORK, "true"], capture_output=True).returncode


@pytest.mark.skipif(not _may_have_one(), reason="needs unshare, ip, and leave to use them")
def test_no_address_inside_is_called_but_those_that_are_allowed() -> None:
    command = [*_OWN_NETWORK, sys.executable, "-m", "tests.e2e.webhooks.inside"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    reached = json.loads(done.stdout)
    assert len(HOSTS) >= 20
    assert reached == {
        "nothing": [PUBLIC],
        "one": ["[::ffff:10.0.0.1]", "10.0.0.1", "[64:ff9b::a00:1]", PUBLIC],
        "all": [*HOSTS, PUBLIC],  # nothing but the check was in the way
    }
