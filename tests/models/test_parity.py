"""The same requests to vLLM's own application and through the gateway have the same answers.

Status, headers that matter, and body, but for ids and times. Where the gateway answers in its own
words, the case says why, and the status is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import httpx
import pytest

from tests.e2e.processes import Stack
from tests.models.answers import comparable
from tests.models.engine_process import start_engine
from tests.models.parity_cases import GENERATE, Case
from tests.redis_server import RedisServer
from tests.waiting import wait_for
from worker.demo import MODEL_NAME

pytestmark = pytest.mark.vllm

FLOAT32 = "--dtype float32 --no-enable-prefix-caching"
"""An answer does not depend on what else is in the batch, nor on the requests before it."""


class Pair(NamedTuple):
    """Clients of vLLM's own application and of the gateway, for one model."""

    model: str
    vllm: httpx.Client
    ours: httpx.Client

    def compare(self, case: Case) -> None:
        answers = [
            client.request(
                case.method,
                case.path,
                content=case.content(self.model),
                headers={"content-type": case.content_type},
            )
            for client in (self.vllm, self.ours)
        ]
        theirs, ours = answers
        if case.own_words:
            assert ours.status_code == (case.status or theirs.status_code), ours.text
            assert "error" in ours.json()
            return
        assert comparable(ours) == comparable(theirs)
        if ours.status_code == 200:
            assert ours.headers["x-flotilla-job-id"]


@pytest.fixture(scope="module")
def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with redis_server.client() as client:
        client.flushall()
    stack = Stack(redis_server.url, tmp_path_factory.mktemp("parity"))
    yield stack
    stack.close()


@pytest.fixture(scope="module")
def generate(stack: Stack) -> Iterator[Pair]:
    """The demo model."""
    gateway = stack.gateway()
    _, direct = start_engine(stack, engine_args=FLOAT32)
    with (
        httpx.Client(base_url=direct, timeout=120) as vllm,
        httpx.Client(base_url=gateway.url, timeout=120) as ours,
    ):
        wait_for(lambda: ours.get("/v1/models").json()["data"], "the model is known")
        yield Pair(MODEL_NAME, vllm, ours)


def ids(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", GENERATE, ids=ids)
def test_generative_models(case: Case, generate: Pair) -> None:
    generate.compare(case)


def test_there_are_at_least_a_hundred_equal_answers() -> None:
    assert sum(not case.own_words for case in GENERATE) >= 100
    names = [case.name for case in GENERATE]
    assert len(set(names)) == len(names)
