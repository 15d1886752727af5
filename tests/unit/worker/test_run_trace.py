"""The spans of one run: which are written, by which worker, and what the engine gets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from starlette.types import Receive, Scope, Send

from shared.job.job import Origin
from shared.job.trace_context import new_trace
from shared.platform import tracing
from tests.harness.collector import Collector, Span
from tests.harness.settings import Settings
from tests.unit.worker.bench import Bench
from worker.core.publish import REVOKED
from worker.core.run import Run
from worker.engines.simulated.engine import SimulatedEngine

REQUEST = new_trace()
TRACED = Origin(REQUEST.traceparent, "req-7")


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Where this process sends its spans."""
    with Collector() as collector:
        tracing.set_up(collector.url, "worker", "w-1")
        yield collector
        tracing.shut_down()


class Engine(SimulatedEngine):
    """Keeps the headers of the last request."""

    headers: dict[bytes, bytes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers = dict(scope["headers"])
        await super().__call__(scope, receive, send)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    engine = Engine(Settings(sim_step_ms=1, sim_step_us_per_seq=0, sim_prefill_us_per_token=0))
    await engine.start()
    bench = Bench(engine)
    yield bench
    engine.close()
    await bench.close()


def written(collector: Collector, run: Run, ending: str) -> list[Span]:
    assert run.trace is not None
    run.trace.write(run.output, "w-1", ending, "")
    tracing.shut_down()
    return collector.spans


async def test_the_engine_is_not_to_record_a_job_that_is_not_traced(
    collector: Collector, bench: Bench
) -> None:
    run = bench.run(max_tokens=2)
    assert run.trace is None
    await run.execute()
    assert bench.engine.headers[b"traceparent"].endswith(b"-00")


async def test_without_tracing_a_traced_job_has_no_spans(bench: Bench) -> None:
    run = bench.run(origin=TRACED, max_tokens=2)
    assert run.trace is None
    await run.execute()
    assert b"traceparent" not in bench.engine.headers


@pytest.mark.parametrize(
    ("ending", "failed"),
    [
        *((each, True) for each in ("lost", "engine_died", "run_failed")),
        *((each, False) for each in ("cancelled", "expired", "drained", REVOKED)),
    ],
)
async def test_an_attempt_has_failed_if_no_one_has_ended_it_on_purpose(
    collector: Collector, bench: Bench, ending: str, failed: bool
) -> None:
    run = bench.run(origin=TRACED)
    (attempt,) = [span for span in written(collector, run, ending) if span.name == "attempt"]
    assert (attempt.attributes["flotilla.outcome"], attempt.failed) == (ending, failed)
