"""What the clients of a rolling restart note of a call."""

from __future__ import annotations

import json

import httpx
import pytest

from load_tests.rolling.client import Clients, StreamedCall, undisturbed


def chunk(text: str) -> str:
    return "data: " + json.dumps({"choices": [{"delta": {"content": text}}]}) + "\n\n"


ERROR = 'data: {"error": {"code": "worker_lost"}}\n\n'
WHOLE = chunk("a") + chunk("b") + "data: [DONE]\n\n"


def clients_of(status: int, body: str) -> Clients:
    made = Clients("http://fleet", "model", 2)
    made._http = httpx.AsyncClient(
        transport=httpx.MockTransport(lambda _: httpx.Response(status, text=body))
    )
    return made


@pytest.mark.parametrize(
    ("status", "body", "problem", "text"),
    [
        (200, WHOLE, "", "ab"),
        (200, chunk("a"), "cut", "a"),
        (200, chunk("a") + ERROR, "worker_lost", "a"),
        (200, chunk("a") + ERROR + "data: [DONE]\n\n", "worker_lost", "a"),
        (503, "", "status 503", ""),
    ],
)
async def test_a_call_that_does_not_end_well_has_a_problem(
    status: int, body: str, problem: str, text: str
) -> None:
    clients = clients_of(status, body)
    call = await clients.call("prompt")
    assert (call.problem, call.text) == (problem, text)
    await clients.close()


async def test_the_right_answers_are_those_of_calls_without_a_problem() -> None:
    clients = clients_of(200, WHOLE)
    assert await undisturbed(clients, ["x", "y"]) == {"x": "ab", "y": "ab"}
    assert clients.calls == []
    await clients.close()
    broken = clients_of(200, chunk("a"))
    with pytest.raises(RuntimeError, match="cut"):
        await undisturbed(broken, ["x"])
    await broken.close()


def test_the_pause_is_the_longest_time_between_two_chunks() -> None:
    assert StreamedCall("x").pause_s == 0
    assert StreamedCall("x", arrivals=[1.0, 1.5, 4.5, 5.0]).pause_s == 3.0
