"""The engine's dashboard against the metrics of a worker with real vLLM."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.queries import JOBS, Exports, panels
from tests.harness.client import CHAT, chat, http
from tests.harness.prometheus import MISSING, Prometheus, installed
from tests.harness.waiting import wait_for
from tests.vllm.conftest import ServedModel

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def prometheus(demo: ServedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """It watches the worker."""
    if not installed():
        pytest.skip(MISSING)
    prometheus = Prometheus(tmp_path_factory.mktemp("prometheus"))
    try:
        prometheus.start()
        prometheus.watch(JOBS["worker"], [demo.worker.url])
        wait_for(lambda: sum(prometheus.up().values()) == 1, "the worker is up")
        yield prometheus
    finally:
        prometheus.stop()


def use(demo: ServedModel) -> None:
    """A stream and a plain answer."""
    for stream in (True, False):
        body = chat(max_tokens=20, stream=stream) | {"model": demo.name}
        answer = http.post(f"{demo.gateway_url}{CHAT}", json=body, timeout=120)
        assert answer.status_code == 200, answer.text


def test_every_panel_names_what_a_worker_exports(demo: ServedModel) -> None:
    use(demo)
    assert Exports("").problems("vllm:num_requests_running")
    exports = Exports(http.get(f"{demo.worker.url}/metrics", timeout=60).text)
    assert [problem for _, expr in panels("engine") for problem in exports.problems(expr)] == []


def test_every_panel_has_data(demo: ServedModel, prometheus: Prometheus) -> None:
    def has_data(expr: str) -> bool:
        if prometheus.values(expr):
            return True
        use(demo)  # rates are of the last minute, which may have passed since
        return False

    for title, expr in panels("engine"):
        wait_for(lambda expr=expr: has_data(expr), f"{title} has data: {expr}")  # type: ignore[misc]
