"""Rules of the scripts, each switched off or inverted in turn: the test that shows it fails then.

The model (test_model.py) has the rules that schedules of several processes need.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

from tests.harness.servers import RedisServer
from tests.store.conftest import MUTANTS, Mutant, open_case

for path in sorted(Path(__file__).parent.glob("test_*.py")):
    importlib.import_module(f"{__package__}.{path.stem}")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.test.__name__[5:])
async def test_a_rule_that_is_switched_off_is_missed(one: RedisServer, mutant: Mutant) -> None:
    own_clock = "case" in inspect.signature(mutant.test).parameters
    async with open_case(one, changes=[(mutant.old, mutant.new)], own_clock=own_clock) as case:
        try:
            await mutant.test(case, **mutant.arguments)
        except (Exception, pytest.fail.Exception):
            return
    pytest.fail(f"it needs no {mutant.old!r}")
