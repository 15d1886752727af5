"""Without the fast paths through private parts of libraries the API is the same."""

from __future__ import annotations

import pytest

from tests.api.test_openai import *  # noqa: F403
from tests.harness.fleet import Process, Stack


@pytest.fixture(scope="module")
def fleet(module_stack: Stack) -> tuple[Process, Process]:
    worker = module_stack.worker(sim_step_ms=2, sim_step_us_per_seq=0, fast_paths="off")
    return module_stack.gateway(fast_paths="off"), worker
