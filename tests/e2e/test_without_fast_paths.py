"""Without the fast paths through private parts of libraries the API is the same."""

from __future__ import annotations

import pytest

from tests.api import test_connection_ends as connection_ends
from tests.api.test_openai import *  # noqa: F403
from tests.harness.fleet import Process, Stack


@pytest.fixture(scope="module")
def fleet(module_stack: Stack) -> tuple[Process, Process]:
    worker = module_stack.worker(sim_step_ms=2, sim_step_us_per_seq=0, fast_paths="off")
    return module_stack.gateway(fast_paths="off"), worker


@pytest.fixture(scope="module")
def gateway_with_keys(fleet: tuple[Process, Process], module_stack: Stack) -> Process:
    return connection_ends.start(module_stack, fast_paths="off")


@pytest.mark.parametrize("end", connection_ends.ENDS)
@pytest.mark.parametrize("behind", ["nothing", "many_requests", "half_a_body"])
async def test_other_tenants_get_their_own_bytes(
    gateway_with_keys: Process, behind: str, end: str
) -> None:
    await connection_ends.leave_beside_others(gateway_with_keys, behind, end)
