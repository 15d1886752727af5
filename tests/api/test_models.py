"""Models that workers have announced: which one is the default, and how they are forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.cli import run_flotilla
from tests.harness.client import http, job, states, submit
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for


@pytest.fixture
def gateway(stack: Stack) -> Process:
    return stack.gateway()


def listed(gateway: Process) -> list[str]:
    return [each["id"] for each in http.get(f"{gateway.url}/v1/models").json()["data"]]


def served(stack: Stack, model: str) -> Process:
    """A worker of a model that is its own pool."""
    return stack.worker(served_model_name=model)


def end(gateway: Process, worker: Process, model: str) -> None:
    """Drain it and wait until the gateway lists the model without a worker."""
    worker.terminate()
    worker.popen.wait(30)
    wait_for(
        lambda: not http.get(f"{gateway.url}/v1/models/{model}").json()["flotilla"]["ready"],
        "the model is not ready",
    )


def ask(gateway: Process, **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, **fields}
    return http.post(f"{gateway.url}/v1/chat/completions", json=body)


def forget(gateway: Process, name: str, **more: Any) -> Any:
    return http.request("DELETE", f"{gateway.url}/admin/models/{name}", **more)


def test_the_only_ready_model_is_the_default_and_comes_first(
    stack: Stack, gateway: Process
) -> None:
    first = served(stack, "a-model")
    end(gateway, first, "a-model")
    served(stack, "b-model")
    wait_for(lambda: listed(gateway) == ["b-model", "a-model"], "the ready one is the first")
    answer = ask(gateway)
    assert (answer.status_code, answer.json()["model"]) == (200, "b-model")
    served(stack, "a-model")
    wait_for(lambda: ask(gateway).status_code == 400, "of two ready ones none is the default")
    wait_for(lambda: listed(gateway) == ["a-model", "b-model"], "both are ready")


def test_a_model_is_forgotten_once_nobody_needs_it(stack: Stack, gateway: Process) -> None:
    served(stack, "b-model")
    worker = served(stack, "org/a-model")

    def refused() -> bool:
        answer = forget(gateway, "org/a-model")
        return (answer.status_code, answer.json()["error"]["code"]) == (409, "model_in_use")

    assert refused(), "it has a worker"
    end(gateway, worker, "org/a-model")
    waiting = submit(
        gateway, {"model": "org/a-model", "messages": [{"role": "user", "content": "hello"}]}
    )
    assert refused(), "it has a job"
    assert http.post(f"{gateway.url}/jobs/{waiting}/cancel").status_code == 200
    done = forget(gateway, "org/a-model", json={"reason": "replaced"})
    assert done.json() == {"id": "org/a-model", "object": "model", "deleted": True}
    assert listed(gateway) == ["b-model"]
    assert ask(gateway, model="org/a-model").status_code == 404
    assert forget(gateway, "org/a-model").status_code == 404
    assert job(gateway, waiting)["state"] == "cancelled"
    trail = http.get(f"{gateway.url}/admin/audit").json()["data"]
    assert ("org/a-model", "replaced") in {(each["subject"], each["reason"]) for each in trail}
    served(stack, "org/a-model")
    assert listed(gateway) == ["b-model", "org/a-model"]


def test_nothing_else_is_forgotten(stack: Stack, gateway: Process) -> None:
    worker = served(stack, "a-model")
    end(gateway, worker, "a-model")
    for name in ("", "a", "a-model/x", "a-mode?"):
        assert forget(gateway, name).status_code in (400, 404, 405)
    assert listed(gateway) == ["a-model"]


def test_a_job_of_an_ended_model_is_kept(stack: Stack, gateway: Process) -> None:
    worker = served(stack, "a-model")
    end(gateway, worker, "a-model")
    body = {"model": "a-model", "messages": [{"role": "user", "content": "hello"}]}
    waiting = submit(gateway, body)
    assert forget(gateway, "a-model").status_code == 409
    served(stack, "a-model")
    wait_for(lambda: states(gateway, [waiting]) == {"completed"}, "the job has ended")


def test_the_command(stack: Stack, gateway: Process) -> None:
    worker = served(stack, "org/a-model")
    environment = {"FLOTILLA_URL": gateway.url, "COLUMNS": "200"}
    shown = run_flotilla("models", "ls", environment=environment).stdout
    assert [line.split()[0] for line in shown.splitlines()[1:]] == ["org/a-model"]
    run_flotilla("models", "rm", "org/a-model", environment=environment, code=4)
    end(gateway, worker, "org/a-model")
    run_flotilla("models", "rm", "org/a-model", environment=environment)
    run_flotilla("models", "rm", "org/a-model", environment=environment, code=3)
    assert listed(gateway) == []
