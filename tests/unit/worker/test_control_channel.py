"""The control channel: a malformed message is skipped and counted, the next one is handled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from prometheus_client import CollectorRegistry

from shared.job.frames import ControlKind
from shared.job.job import new_job_id_in
from shared.platform.malformed import MalformedValues
from shared.platform.metrics.worker import WorkerMetrics
from worker.core.control_channel import ControlChannel


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff\xfe",
        b"\xc1",
        msgpack.packb(7),
        msgpack.packb(["no such kind"]),
        msgpack.packb([ControlKind.DROP]),
        msgpack.packb([ControlKind.DROP, 7]),
        msgpack.packb([ControlKind.DROP, b"\xff"]),
        msgpack.packb([ControlKind.LOOK]),
        msgpack.packb([ControlKind.LOOK, "job"]),
        msgpack.packb([ControlKind.JOBS]),
        msgpack.packb([ControlKind.JOBS, "now", "token", "job"]),
        b"\x91" * 10_000,
    ],
)
def test_a_malformed_message_is_skipped_and_counted(message: bytes) -> None:
    registry = CollectorRegistry()
    aborted: list[str] = []
    started: list[Any] = []
    looked: list[int] = []
    nothing: Any = None
    runs: Any = SimpleNamespace(abort=aborted.append)
    malformed = MalformedValues(WorkerMetrics(registry).malformed)
    channel = ControlChannel(nothing, nothing, runs, started.append, looked.append, malformed)
    channel.on_message(message)
    labels = {"kind": "control message"}
    assert registry.get_sample_value("flotilla_malformed_values_total", labels) == 1
    channel.on_message(msgpack.packb([ControlKind.DROP, "job_1"]))
    assert (started, looked, aborted) == ([], [], ["job_1"])
    channel.on_message(msgpack.packb([ControlKind.LOOK, new_job_id_in(2)]))
    assert looked == [2]
