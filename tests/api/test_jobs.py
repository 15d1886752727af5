"""Jobs over HTTP: submit, poll, wait, events, result, cancel, list."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import httpx
import pytest

from tests.harness.client import CHAT, MODEL
from tests.harness.client import chat as request
from tests.harness.fleet import Process, Stack
from tests.harness.loss import lose
from tests.harness.servers import RedisServer
from tests.harness.waiting import DEADLINE_S, wait_for


@pytest.fixture(scope="module")
def fleet(module_stack: Stack) -> tuple[Process, Process]:
    """Two gateways, one worker with two slots: a third job waits."""
    module_stack.worker(sim_step_ms=5, sim_step_us_per_seq=0, sim_max_num_seqs=2)
    return module_stack.gateway(keepalive_s=0.2), module_stack.gateway(keepalive_s=0.2)


@pytest.fixture
def api(fleet: tuple[Process, Process]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=fleet[0].url, timeout=30) as client:
        yield client


@pytest.fixture
def other(fleet: tuple[Process, Process]) -> Iterator[httpx.Client]:
    """The same fleet through another gateway."""
    with httpx.Client(base_url=fleet[1].url, timeout=30) as client:
        yield client


def submit(api: httpx.Client, text: str = "hello", **fields: Any) -> dict[str, Any]:
    extra = {
        name: fields.pop(name) for name in ("lane", "deadline_s", "metadata") if name in fields
    }
    answer = api.post("/jobs", json={"endpoint": CHAT, "body": request(text, **fields), **extra})
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/jobs/{job['id']}"
    return job


def read_events(
    api: httpx.Client, job_id: str, last_event_id: str = "0", at_most: int | None = None
) -> list[tuple[str, str, Any]]:
    """`(event, id, data)` of a job's events, at most `at_most`."""
    found: list[tuple[str, str, Any]] = []
    headers = {"last-event-id": last_event_id}
    with api.stream("GET", f"/jobs/{job_id}/events", headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        name = event_id = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("id: "):
                event_id = line.removeprefix("id: ")
            elif line.startswith("data: "):
                found.append((name, event_id, json.loads(line.removeprefix("data: "))))
                name = event_id = ""
                if len(found) == at_most:
                    break
    return found


def test_submit_wait_result(api: httpx.Client, other: httpx.Client) -> None:
    job = submit(api, max_tokens=10, metadata={"who": "me"})
    done = other.get(f"/jobs/{job['id']}", params={"wait": 20}).json()
    while done["state"] in {"queued", "in_progress"}:
        done = other.get(f"/jobs/{job['id']}", params={"wait": 20}).json()
    assert done["state"] == "completed"
    assert done["metadata"] == {"who": "me"}
    assert done["usage"]["completion_tokens"] == done["result"]["usage"]["completion_tokens"]
    assert done["text"] == done["result"]["choices"][0]["message"]["content"]
    assert done["created_at"] <= done["started_at"] <= done["finished_at"] < done["expires_at"]
    assert [attempt["outcome"] for attempt in done["attempts"]] == ["completed"]
    direct = api.post(CHAT, json=request("hello", max_tokens=10)).json()
    result = api.get(f"/jobs/{job['id']}/result")
    assert result.json()["choices"] == direct["choices"]
    assert result.json()["id"] == f"chatcmpl-{job['id']}"


def test_a_job_shows_its_text_while_it_grows_and_waits_with_a_position(api: httpx.Client) -> None:
    running = [submit(api, f"long {i}", max_tokens=8000, ignore_eos=True) for i in range(2)]
    first = running[0]["id"]
    shown = wait_for(lambda: api.get(f"/jobs/{first}").json().get("text"), "some text is there")
    assert shown.startswith("[simulated]")
    waiting = [submit(api, "waits"), submit(api, "waits too")]
    positions = [api.get(f"/jobs/{job['id']}").json()["position"] for job in waiting]
    assert positions == [1, 2]
    hurried = submit(api, "overtakes", lane="priority")
    assert api.get(f"/jobs/{hurried['id']}").json()["position"] == 1
    assert api.get(f"/jobs/{waiting[1]['id']}").json()["position"] == 3
    assert api.get(f"/jobs/{waiting[1]['id']}/result").status_code == 202
    longer = wait_for(
        lambda: (text := api.get(f"/jobs/{first}").json()["text"]) != shown and text, "it grows"
    )
    assert longer.startswith(shown)
    for job in [hurried, *waiting, *running]:  # a slot that is freed earlier would let them run
        cancelled = api.post(f"/jobs/{job['id']}/cancel").json()
        assert cancelled["state"] == "cancelled"
    kept = api.get(f"/jobs/{first}").json()
    assert kept["text"].startswith(longer)
    assert kept["error"]["code"] == "cancelled"
    refused = api.get(f"/jobs/{first}/result")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "cancelled")
    again = api.post(f"/jobs/{first}/cancel").json()
    assert (again["state"], again["finished_at"]) == ("cancelled", kept["finished_at"])


@pytest.mark.parametrize("stream", [False, True])
def test_events_can_be_resumed_on_another_gateway(
    api: httpx.Client, other: httpx.Client, stream: bool
) -> None:
    job = submit(api, "events", max_tokens=300, ignore_eos=True, stream=stream)
    start = read_events(api, job["id"], at_most=12)
    last = start[-1][1]
    rest = read_events(other, job["id"], last_event_id=last)
    whole = read_events(other, job["id"])
    assert all(event_id for _, event_id, _ in start + rest + whole)
    assert (rest[0][:2], whole[0][1]) == (("in_progress", last), "0")
    states = {"queued", "in_progress"}
    numbered = [item for item in whole if item[0] not in states]
    resumed = [item for item in start + rest if item[0] not in states]
    assert [item[:2] for item in resumed] == [item[:2] for item in numbered]
    assert [item[2] for item in resumed[:-1]] == [item[2] for item in numbered[:-1]]
    assert whole[-1][0] == "completed"
    text = "".join(event_text(name, data) for name, _, data in whole)
    assert text == whole[-1][2]["text"]
    done = other.get(f"/jobs/{job['id']}/events", headers={"last-event-id": whole[-1][1]})
    assert done.status_code == 204


def test_no_block_of_the_events_is_without_data(api: httpx.Client) -> None:
    """Clients hand a block that holds only `retry:` on as an empty message."""
    job = submit(api, max_tokens=3)
    text = re.sub(r"(?m)^:.*\n", "", api.get(f"/jobs/{job['id']}/events").text)
    events = [block for block in text.split("\n\n") if block]
    assert events[0].startswith("retry: 1000\nevent: ")
    assert all("\ndata: " in block for block in events)
    assert sum("retry:" in block for block in events) == 1


def event_text(name: str, data: Any) -> str:
    if name == "delta":
        return "".join(choice["text"] for choice in data["choices"])
    if name == "chunk":
        return "".join(choice["delta"].get("content") or "" for choice in data["choices"])
    return ""


def test_events_of_a_queued_job_have_its_position(api: httpx.Client) -> None:
    blockers = [submit(api, f"block {i}", max_tokens=3000, ignore_eos=True) for i in range(2)]
    job = submit(api, "patient", max_tokens=3)
    events = read_events(api, job["id"], at_most=2)
    assert [(name, data["position"]) for name, _, data in events] == [("queued", 1), ("queued", 1)]
    last = api.post("/jobs", json={"body": request("last", max_tokens=3)})
    assert (last.status_code, last.headers["x-flotilla-queue-position"]) == (202, "2")
    for blocker in blockers:
        api.post(f"/jobs/{blocker['id']}/cancel")
    assert read_events(api, job["id"])[-1][0] == "completed"


def test_a_streamed_jobs_result_is_the_stream(api: httpx.Client) -> None:
    job = submit(api, "streamed", max_tokens=5, stream=True)
    read_events(api, job["id"])
    result = api.get(f"/jobs/{job['id']}/result")
    assert result.headers["content-type"].startswith("text/event-stream")
    assert result.text.endswith("data: [DONE]\n\n")
    assert job["id"] in result.text


def test_a_request_that_vllm_refuses_is_a_failed_job_with_vllms_error(api: httpx.Client) -> None:
    job = submit(api, max_tokens=0)
    done = wait_for(
        lambda: (j := api.get(f"/jobs/{job['id']}").json())["state"] == "failed" and j, "it fails"
    )
    direct = api.post(CHAT, json=request("hello", max_tokens=0))
    result = api.get(f"/jobs/{job['id']}/result")
    assert (result.status_code, result.json()) == (direct.status_code, direct.json())
    assert done["error"] == direct.json()["error"]


def test_the_list_is_filtered_and_paged(api: httpx.Client) -> None:
    jobs = [submit(api, f"listed {i}", max_tokens=1) for i in range(5)]
    for job in jobs:
        wait_for(lambda j=job: api.get(f"/jobs/{j['id']}").json()["state"] == "completed", "done")
    found, cursor = [], None
    for _ in range(50):
        params = {"limit": 2, "state": "completed", "model": MODEL}
        page = api.get("/jobs", params=params | ({"cursor": cursor} if cursor else {})).json()
        found += [job["id"] for job in page["data"]]
        cursor = page["next_cursor"]
        if not page["has_more"]:
            break
    assert found[:5] == [job["id"] for job in reversed(jobs)]
    assert len(found) == len(set(found))
    assert api.get("/jobs", params={"model": "nope"}).json()["data"] == []


def test_the_list_and_the_job_agree(api: httpx.Client) -> None:
    running = [submit(api, f"agree {i}", max_tokens=5000, ignore_eos=True) for i in range(2)]
    waiting = [submit(api, "waits"), submit(api, "waits too")]
    refused = submit(api, "refused", max_tokens=-1, lane="priority")
    wait_for(lambda: api.get(f"/jobs/{running[0]['id']}").json().get("text"), "some text is there")
    cancelled = api.post(f"/jobs/{running[0]['id']}/cancel").json()
    assert cancelled["usage_so_far"]["completion_tokens"] > 0
    url = f"/jobs/{refused['id']}"
    wait_for(lambda: api.get(url).json()["state"] == "failed", "it is refused")

    def listed_jobs() -> dict[str, Any]:
        return {job["id"]: job for job in api.get("/jobs", params={"limit": 10}).json()["data"]}

    def agree(job_id: str) -> bool:
        shown, job = listed_jobs()[job_id], api.get(f"/jobs/{job_id}").json()
        if shown["state"] == "queued":
            return bool(shown["position"] == job.get("position") is not None)
        return shown == {name: job.get(name) for name in shown}

    listed = listed_jobs()
    for job_id in listed:  # a job may change between the two calls
        wait_for(partial(agree, job_id), f"the list and the job {job_id} agree")
    assert "max_tokens" in listed[refused["id"]]["error"]["message"]
    for job in [*running, *waiting]:
        api.post(f"/jobs/{job['id']}/cancel")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["x"] * 513}, "prompt"),
        ({"prompt": [[1]] * 513}, "prompt"),
        ({"prompt": ["x"] * 257, "n": 2}, "n"),
        ({"prompt": [1] * 70_000}, "prompt"),
        ({"prompt": "x" * 140_000, "truncate_prompt_tokens": 10}, "truncate_prompt_tokens"),
    ],
)
def test_prompts_that_would_block_a_worker_are_refused(
    api: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    body = {"model": MODEL, **fields}
    job = {"endpoint": "/v1/completions", "body": body}
    for answer in (api.post("/v1/completions", json=body), api.post("/jobs", json=job)):
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", param)


def test_the_body_of_a_large_job_is_queued_unchanged(api: httpx.Client) -> None:
    """Spaces and escapes stay as they were sent. A body of this size is parsed in a thread."""
    text = '{"metadata": {"a": "b"}, "body" : {"model": "simulated", "max_tokens": 1, "messages": '
    text += '[{"role": "user", "content": "%s \\u00fc, {x}"}]}}' % ("long " * 20_000)
    job = api.post("/jobs", content=text, headers={"content-type": "application/json"}).json()
    url = f"/jobs/{job['id']}?wait=20"
    done = wait_for(lambda: (j := api.get(url).json())["finished_at"] and j, "it ends")
    assert done["metadata"] == {"a": "b"}
    assert "max_tokens" in done["error"]["message"]
    many = '{"body": {"model": "simulated", "prompt": [%s1]}}' % ("[1]," * 200_000)
    answer = api.post("/jobs", content=many, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("job_id", ["job_" + "0" * 27, "nope", "..%2f..", "job_000{}", "a" * 5000])
@pytest.mark.parametrize("part", ["", "/result", "/events"])
def test_unknown_jobs_are_not_found(api: httpx.Client, job_id: str, part: str) -> None:
    answer = api.get(f"/jobs/{job_id}{part}")
    assert answer.status_code == 404
    no_route = "%2f" in job_id  # the server decodes it, and the path has more parts
    assert answer.json()["error"]["code"] == ("unknown_route" if no_route else "not_found")


@pytest.mark.parametrize("stream", [False, True])
def test_a_job_whose_log_is_lost_while_it_runs_is_not_completed(
    api: httpx.Client, redis_server: RedisServer, stream: bool
) -> None:
    job_id = submit(api, "hello", stream=stream, max_tokens=1000, ignore_eos=True)["id"]
    wait_for(lambda: lose(redis_server, job_id, "log"), "its log has begun")
    job = api.get(f"/jobs/{job_id}", params={"wait": 30}).json()
    while job["state"] in {"queued", "in_progress"}:
        job = api.get(f"/jobs/{job_id}", params={"wait": 30}).json()
    assert (job["state"], job["error"]["code"]) == ("failed", "log_lost")
    result = api.get(f"/jobs/{job_id}/result")
    assert (result.status_code, result.json()["error"]["code"]) == (500, "log_lost")


def test_a_job_whose_log_is_lost_after_its_end_has_an_error(
    api: httpx.Client, redis_server: RedisServer
) -> None:
    job_id = submit(api, "hello", stream=True, max_tokens=5)["id"]
    wait_for(lambda: api.get(f"/jobs/{job_id}").json()["state"] == "completed", "it is completed")
    assert api.get(f"/jobs/{job_id}").json()["text"]
    assert lose(redis_server, job_id, "log")
    job = api.get(f"/jobs/{job_id}").json()
    assert (job["text"], job["error"]["code"]) == (None, "stream_reset")
    assert api.get(f"/jobs/{job_id}/result").json()["error"]["code"] == "stream_reset"


@pytest.mark.parametrize("what", ["record", "all"])
def test_a_reader_of_a_lost_job_gets_an_error(
    api: httpx.Client, redis_server: RedisServer, what: Literal["record", "all"]
) -> None:
    body = request("hello", stream=True, max_tokens=4000, ignore_eos=True)
    with api.stream("POST", CHAT, json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        job_id = answer.headers["x-flotilla-job-id"]
        assert lose(redis_server, job_id, what)
        until = time.monotonic() + DEADLINE_S
        chunks: list[str] = []
        for line in lines:  # there is a comment every 0.2 s, so this does not hang
            assert time.monotonic() < until, "the stream has not ended"
            if line.startswith("data: "):
                chunks.append(line)
    assert json.loads(chunks[-1].removeprefix("data: "))["error"]["code"] == "stream_reset"
