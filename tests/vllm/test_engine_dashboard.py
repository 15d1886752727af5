"""The dashboard of the engine shows what a worker with real vLLM exports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.deploy.queries import Exports
from tests.deploy.test_observability import JOBS, panels
from tests.harness.client import CHAT
from tests.harness.prometheus import MISSING, Prometheus, installed
from tests.harness.waiting import wait_for
from tests.vllm.conftest import ServedModel

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    if not installed():
        pytest.skip(MISSING)
    prometheus = Prometheus(tmp_path)
    prometheus.start()
    yield prometheus
    prometheus.stop()


def use(demo: ServedModel) -> None:
    body = {"model": demo.name, "messages": [{"role": "user", "content": "hello"}]}
    for stream in (True, False):
        answer = httpx.post(
            f"{demo.gateway_url}{CHAT}",
            json={**body, "max_tokens": 20, "stream": stream},
            timeout=60,
        )
        assert answer.status_code == 200, answer.text


def test_every_panel_names_what_the_worker_exports(demo: ServedModel) -> None:
    use(demo)
    exports = Exports(httpx.get(f"{demo.worker.url}/metrics").text)
    assert [p for _, expr in panels("engine") for p in exports.problems(expr)] == []
    assert exports.problems("vllm:num_requests_on_the_moon")


def test_every_panel_has_data(demo: ServedModel, prometheus: Prometheus) -> None:
    prometheus.watch(JOBS["worker"], [demo.worker.url])
    wait_for(lambda: sum(prometheus.up().values()) == 1, "the worker is scraped")

    def has_data(expr: str) -> bool:
        if prometheus.values(expr):
            return True
        use(demo)  # rates are of the last minute, which may have passed since
        return False

    for title, expr in panels("engine"):
        wait_for(lambda expr=expr: has_data(expr), f"{title} has data: {expr}")  # type: ignore[misc]
