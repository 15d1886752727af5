"""An answer is taken up again by its job's id: on any gateway, while it runs and afterwards."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import httpx
import pytest

from tests.harness.client import CHAT, chat, http
from tests.harness.fleet import Process, Stack

KEYS = "team-a:a,team-b:b"
TEAM_A, TEAM_B = {"authorization": "Bearer a"}, {"authorization": "Bearer b"}


@pytest.fixture(scope="module")
def fleet(module_stack: Stack) -> tuple[Process, Process]:
    """Two gateways and one worker."""
    module_stack.worker(sim_step_ms=10, sim_step_us_per_seq=0)
    return module_stack.gateway(api_keys=KEYS), module_stack.gateway(api_keys=KEYS)


@pytest.fixture
def api(fleet: tuple[Process, Process]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=fleet[0].url, timeout=60, headers=TEAM_A) as client:
        yield client


@pytest.fixture
def other(fleet: tuple[Process, Process]) -> Iterator[httpx.Client]:
    """The same fleet through another gateway."""
    with httpx.Client(base_url=fleet[1].url, timeout=60, headers=TEAM_A) as client:
        yield client


def request(max_tokens: int, **fields: Any) -> dict[str, Any]:
    return chat(max_tokens=max_tokens, **{"stream": True, "ignore_eos": True, **fields})


def events_in(body: bytes) -> list[bytes]:
    """The events of a stream with their empty lines, without comments."""
    data = re.sub(rb"(?m)^:.*\n", b"", body)
    return [block + b"\n\n" for block in data.split(b"\n\n")[:-1]]


def submit(api: httpx.Client, max_tokens: int, **fields: Any) -> str:
    """A job that runs whether anyone reads it or not; its id."""
    answer = api.post("/jobs", json={"endpoint": CHAT, "body": request(max_tokens, **fields)})
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["id"]
    return job_id


def test_every_position_of_a_stream_that_has_ended(api: httpx.Client, other: httpx.Client) -> None:
    whole = api.post(CHAT, json=request(5))
    job_id, events = whole.headers["x-flotilla-job-id"], events_in(whole.content)
    assert events[-1] == b"data: [DONE]\n\n"
    for client in (api, other):
        for after in range(len(events) + 1):
            had = crc32(b"".join(events[:after]))
            for query in (f"after={after}", f"after={after}&crc32={had:08x}"):
                rest = client.get(f"/jobs/{job_id}/stream?{query}")
                assert rest.status_code == 200
                assert rest.headers["content-type"] == whole.headers["content-type"]
                assert rest.headers["x-flotilla-job-id"] == job_id
                assert rest.content == b"".join(events[after:])


def test_many_readers_on_two_gateways_while_it_runs(api: httpx.Client, other: httpx.Client) -> None:
    job_id = submit(api, 150)
    had: list[bytes] = []
    with api.stream("GET", f"/jobs/{job_id}/stream") as answer:
        for block in answer.iter_raw():
            had += events_in(block)
            if len(had) >= 20:
                break
    bodies: dict[int, list[bytes]] = {}

    def read(number: int) -> None:
        after = number * 3
        crc = crc32(b"".join(had[:after]))
        client = (api, other)[number % 2]
        rest = client.get(f"/jobs/{job_id}/stream?after={after}&crc32={crc:08x}")
        assert rest.status_code == 200
        bodies[number] = had[:after] + events_in(rest.content)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    whole = events_in(api.get(f"/jobs/{job_id}/result").content)
    assert len(whole) > 150
    assert sorted(bodies) == list(range(6))
    assert all(body == whole for body in bodies.values())


def test_a_reader_that_changes_the_gateway_again_and_again(
    api: httpx.Client, other: httpx.Client
) -> None:
    job_id, had, turns = submit(api, 200), [], 0
    while not had or had[-1] != b"data: [DONE]\n\n":
        turns += 1
        path = f"/jobs/{job_id}/stream?after={len(had)}&crc32={crc32(b''.join(had)):08x}"
        with (api, other)[turns % 2].stream("GET", path) as answer:
            assert answer.status_code == 200
            begun = len(had)
            for block in answer.iter_raw():
                had += events_in(block)
                if len(had) >= begun + 20:
                    break
    assert turns >= 5
    assert had == events_in(api.get(f"/jobs/{job_id}/result").content)


def test_an_answer_in_one_piece_is_waited_for(api: httpx.Client, other: httpx.Client) -> None:
    job_id = submit(api, 40, stream=False)
    answer = other.get(f"/jobs/{job_id}/stream")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    again = api.get(f"/jobs/{job_id}/stream?after=0&crc32=00000000")
    assert again.content == answer.content == api.get(f"/jobs/{job_id}/result").content
    beyond = api.get(f"/jobs/{job_id}/stream?after=1")
    assert beyond.status_code == 400
    assert beyond.json()["error"]["param"] == "after"


def test_an_endpoints_refusal_is_given_as_the_endpoint_gives_it(api: httpx.Client) -> None:
    refused = api.post(CHAT, json=request(-1))
    assert refused.status_code == 400
    path = f"/jobs/{refused.headers['x-flotilla-job-id']}/stream"
    again = api.get(path)
    assert (again.status_code, again.content) == (400, refused.content)
    inside = api.get(f"{path}?after=0&crc32=00000000")  # its stream has begun with a comment
    assert (inside.status_code, inside.content) == (200, b"data: " + refused.content + b"\n\n")


def test_a_cancelled_job_ends_its_stream_with_the_error(api: httpx.Client) -> None:
    job_id = submit(api, 5000)
    with api.stream("GET", f"/jobs/{job_id}/stream") as answer:
        blocks = answer.iter_raw()
        had = events_in(next(blocks))
        assert api.post(f"/jobs/{job_id}/cancel").json()["state"] == "cancelled"
        for block in blocks:
            had += events_in(block)
    assert json.loads(had[-1].removeprefix(b"data: "))["error"]["code"] == "cancelled"
    for after in (0, 1, len(had) - 1, len(had)):
        crc = crc32(b"".join(had[:after]))
        rest = api.get(f"/jobs/{job_id}/stream?after={after}&crc32={crc:x}")
        assert rest.status_code == 200
        assert rest.content == b"".join(had[after:])
    waiting = submit(api, 5)
    assert api.post(f"/jobs/{waiting}/cancel").json()["state"] in {"cancelled", "completed"}


def test_refusals(api: httpx.Client) -> None:
    whole = api.post(CHAT, json=request(3))
    path = f"/jobs/{whole.headers['x-flotilla-job-id']}/stream"
    n = len(events_in(whole.content))
    reset = api.get(f"{path}?after=1&crc32=12345678")
    assert (reset.status_code, reset.json()["error"]["code"]) == (409, "stream_reset")
    assert reset.headers["x-should-retry"] == "false"
    beyond = api.get(f"{path}?after={n + 1}")
    assert (beyond.status_code, beyond.json()["error"]["param"]) == (400, "after")
    assert api.get(f"{path}?after={n + 1}&crc32=0").status_code == 409
    for query in ("after=x", "crc32=0123456789", "from=1", "after=1&after=2"):
        assert api.get(f"{path}?{query}").status_code == 400, query
    assert api.get(path, headers=TEAM_B).status_code == 404
    assert api.get(path, headers={"authorization": ""}).status_code == 401
    assert api.get("/jobs/job_000/stream").status_code == 404
    assert api.post(path).status_code == 405
    assert api.head(path).status_code == 405
    assert api.request("GET", path, content=b"body").status_code == 400


def test_the_answer_outlives_all_gateways(
    fleet: tuple[Process, Process], module_stack: Stack, api: httpx.Client
) -> None:
    whole = api.post(CHAT, json=request(5))
    late = module_stack.gateway(api_keys=KEYS)
    path = f"{late.url}/jobs/{whole.headers['x-flotilla-job-id']}/stream?after=2"
    assert http.get(path, headers=TEAM_A).content == b"".join(events_in(whole.content)[2:])
