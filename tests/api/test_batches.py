"""Batches over HTTP, by OpenAI's unmodified SDK: a gateway, maintenance and a simulated worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import Batch
from redis import Redis

from tests.harness.client import CHAT, http
from tests.harness.client import batch_line as line
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for

ENDED = {"failed", "completed", "expired", "cancelled"}


@pytest.fixture(scope="module")
def fleet(module_stack: Stack) -> Process:
    """The gateway of a whole fleet."""
    storage = str(module_stack.folder / "files")
    module_stack.worker(sim_step_ms=2, sim_step_us_per_seq=0, sim_max_num_seqs=8)
    module_stack.maintenance(storage_url=storage)
    return module_stack.gateway(
        storage_url=storage, api_keys="team:k-team,other:k-other,many:k-many"
    )


@pytest.fixture
def client(fleet: Process) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{fleet.url}/v1", api_key="k-team", max_retries=0) as client:
        yield client


def created(client: OpenAI, *lines: bytes, **changes: Any) -> Batch:
    """A batch of these lines."""
    file = client.files.create(file=("in.jsonl", b"\n".join(lines)), purpose="batch")
    values = {"endpoint": CHAT, "completion_window": "24h"} | changes
    return client.batches.create(input_file_id=file.id, **values)


def ended(client: OpenAI, batch: Batch) -> Batch:
    """The batch at its end."""

    def has_ended() -> Batch | None:
        found = client.batches.retrieve(batch.id)
        return found if found.status in ENDED else None

    return wait_for(has_ended, "the batch has ended")


def test_a_batch_from_end_to_end(client: OpenAI) -> None:
    lines = [line("a"), line("b"), line("bad", max_tokens=-1), line("c")]
    batch = created(client, *lines, metadata={"team": "search"})
    assert batch.id.startswith("batch_")
    assert (batch.status, batch.output_file_id, batch.errors) == ("validating", None, None)
    assert batch.expires_at == batch.created_at + 86_400
    done = ended(client, batch)
    assert (done.status, done.model, done.metadata) == (
        "completed",
        "simulated",
        {"team": "search"},
    )
    assert done.request_counts.model_dump() == {"total": 4, "completed": 3, "failed": 1}
    assert done.in_progress_at <= done.finalizing_at <= done.completed_at
    assert done.usage.output_tokens == 6
    assert done.usage.total_tokens == done.usage.input_tokens + 6
    answers = [
        json.loads(each) for each in client.files.content(done.output_file_id).text.splitlines()
    ]
    assert sorted(each["custom_id"] for each in answers) == ["a", "b", "c"]
    assert {each["response"]["status_code"] for each in answers} == {200}
    (error,) = [
        json.loads(each) for each in client.files.content(done.error_file_id).text.splitlines()
    ]
    assert (error["custom_id"], error["response"]["status_code"], error["error"]) == (
        "bad",
        400,
        None,
    )
    output = client.files.retrieve(done.output_file_id)
    assert output.purpose == "batch_output"
    assert output.expires_at == pytest.approx(output.created_at + 30 * 86_400, abs=1)
    assert [each.id for each in client.batches.list(limit=1).data] == [batch.id]
    with pytest.raises(openai.ConflictError, match="Cannot cancel a batch with status 'completed'"):
        client.batches.cancel(batch.id)


def test_what_is_done_so_far(fleet: Process, client: OpenAI) -> None:
    batch = created(client, line("quick"), line("slow", max_tokens=8000, ignore_eos=True))
    headers = {"authorization": "Bearer k-team"}
    url = f"{fleet.url}/v1/batches/{batch.id}"

    def output() -> str:
        return http.get(f"{url}/output", headers=headers).text

    wait_for(output, "the first answer is committed")
    assert json.loads(output())["custom_id"] == "quick"
    content = http.get(f"{url}/output", headers=headers)
    assert content.headers["content-type"] == "application/x-ndjson"
    assert http.get(f"{url}/errors", headers=headers).text == ""
    for _ in range(2):
        assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    cancelled = ended(client, batch)
    assert cancelled.status == "cancelled"
    assert cancelled.request_counts.model_dump() == {"total": 2, "completed": 1, "failed": 1}
    (error,) = http.get(f"{url}/errors", headers=headers).text.splitlines()
    assert json.loads(error)["error"]["code"] == "batch_cancelled"
    assert client.batches.cancel(batch.id).status == "cancelled"
    client.files.delete(cancelled.output_file_id)
    assert http.get(f"{url}/output", headers=headers).status_code == 404
    assert http.get(f"{url}/errors", headers=headers).status_code == 200


def test_a_new_batch_makes_no_room_by_those_that_have_ended_within_a_day(
    module_stack: Stack, fleet: Process
) -> None:
    with (
        OpenAI(base_url=f"{fleet.url}/v1", api_key="k-many", max_retries=0) as client,
        Redis.from_url(module_stack.redis_url, decode_responses=True) as redis,
    ):
        batch = ended(client, created(client, line("a")))
        (record,), (index,) = redis.keys(f"*batch:{batch.id}"), redis.keys("*:batches:many")
        ids = [f"batch_{n:024x}" for n in range(9_999)]
        with redis.pipeline(transaction=False) as pipeline:
            for n, each in enumerate(ids):
                pipeline.copy(record, record.replace(batch.id, each))
                pipeline.zadd(index, {each: n})
            pipeline.execute()
        with pytest.raises(openai.RateLimitError) as refused:
            created(client, line("a"))
        assert refused.value.code == "too_many_batches"
        assert client.batches.retrieve(ids[0]).status == "completed"
        redis.expire(record.replace(batch.id, ids[0]), 28 * 86_400)  # as two days after its end
        created(client, line("a"))
        with pytest.raises(openai.NotFoundError):
            client.batches.retrieve(ids[0])
        assert client.batches.retrieve(ids[1]).status == "completed"


def test_an_input_that_is_no_batch(client: OpenAI) -> None:
    for lines, codes in (
        ((line("a"), b"{"), [(2, "invalid_json_line")]),
        ((line("a"), line("b"), line("a")), [(3, "duplicate_custom_id")]),
        ((b"\n",), [(None, "empty_file")]),
    ):
        failed = ended(client, created(client, *lines))
        assert (failed.status, failed.output_file_id) == ("failed", None)
        assert [(each.line, each.code) for each in failed.errors.data] == codes


def test_large_lines_are_requests_as_others_are(client: OpenAI) -> None:
    nested = json.loads('{"":' * 50 + "0" + "}" * 50)
    lines = [
        line("a"),
        line("text", user="é" * (1 << 20)),
        line("objects", x=[nested] * 20_000),
        b" " * (1 << 20),
        line("b"),
    ]
    batch = created(client, *lines)
    done = ended(client, batch)
    assert done.status == "completed", done.errors
    output = client.files.content(done.output_file_id).text.splitlines()
    assert {json.loads(each)["custom_id"] for each in output} == {"a", "text", "b"}
    (error,) = client.files.content(done.error_file_id).text.splitlines()
    assert json.loads(error)["custom_id"] == "objects"
    assert json.loads(error)["response"]["status_code"] == 413


def test_large_lines_of_a_cancelled_batch_are_told_too(client: OpenAI) -> None:
    batch = created(client, *(line(f"{n}", user="x" * (1 << 19)) for n in range(40)))
    client.batches.cancel(batch.id)
    done = ended(client, batch)
    assert done.status == "cancelled"
    counts = done.request_counts
    assert counts.total in (0, 40)
    assert counts.completed + counts.failed == counts.total


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (line("a", user="x" * (9 << 20)), "line_too_large"),
        (line("a", user="é" * (1 << 20))[:-1], "invalid_json_line"),
        (line("a", user="é" * (1 << 20)).replace(b"e9", b"\xff", 1), "invalid_json_line"),
        (b"[" + b"{}," * (1 << 20) + b"{}]", "invalid_json_line"),
        (line("a", stream=True, user="é" * (1 << 20)), "stream_not_supported"),
        (line("a", model="x" * (1 << 20)), "model_not_found"),
    ],
)
def test_what_is_wrong_with_a_large_line(client: OpenAI, wrong: bytes, code: str) -> None:
    failed = ended(client, created(client, line("b"), wrong))
    assert [(each.line, each.code) for each in failed.errors.data] == [(2, code)]


def test_a_hopeless_file_is_not_read_to_its_end(client: OpenAI) -> None:
    failed = ended(client, created(client, *([b"x"] * 500_000)))
    assert [each.line for each in failed.errors.data] == list(range(1, 101))


def test_pages(client: OpenAI) -> None:
    made = [created(client, line("a"), line("b")).id for _ in range(3)]
    first = client.batches.list(limit=2)
    assert [each.id for each in first.data] == made[:0:-1]
    assert first.has_more
    assert next(iter(first.get_next_page().data)).id == made[0]
    assert [each.id for each in client.batches.list(limit=2)][:3] == made[::-1]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/audio/transcriptions"}, "endpoint"),
        ({"endpoint": None}, "endpoint"),
        ({"completion_window": "30m"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": 24}, "completion_window"),
        ({"metadata": {"n": 1}}, "metadata.n"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"n": "x" * 513}}, "metadata.n"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 60}},
         "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}},
         "output_expires_after.anchor"),
        ({"no_such_field": 1}, "no_such_field"),
    ],
)  # fmt: skip
def test_what_is_refused(client: OpenAI, changes: dict[str, Any], param: str) -> None:
    file = client.files.create(file=("in.jsonl", line("a")), purpose="batch")
    body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"} | changes
    with pytest.raises(openai.BadRequestError) as refused:
        client.post("/batches", body=body, cast_to=object)
    assert refused.value.param == param


def test_files_that_are_no_input(client: OpenAI) -> None:
    data = client.files.create(file=("x.txt", b"x"), purpose="user_data")
    values: Any = {"endpoint": CHAT, "completion_window": "24h"}
    with pytest.raises(openai.BadRequestError) as refused:
        client.batches.create(input_file_id=data.id, **values)
    assert refused.value.param == "input_file_id"
    mine = created(client, line("a"))
    other = client.with_options(api_key="k-other")
    for call in (
        lambda: client.batches.create(input_file_id="file-none", **values),
        lambda: other.batches.create(input_file_id=mine.input_file_id, **values),
        lambda: other.batches.list(after=mine.id),
    ):
        with pytest.raises(openai.NotFoundError):
            call()


def test_a_short_window_and_when_results_expire(client: OpenAI) -> None:
    batch = created(
        client, line("a"), line("b"),
        completion_window="1h", output_expires_after={"anchor": "created_at", "seconds": 3600},
    )  # fmt: skip
    done = ended(client, batch)
    assert done.request_counts.completed == 2
    output = client.files.retrieve(done.output_file_id)
    assert output.expires_at == pytest.approx(output.created_at + 3600, abs=1)


def test_without_storage(fleet: Process, module_stack: Stack) -> None:
    url = module_stack.gateway().url
    for method, path in (
        ("GET", ""),
        ("POST", ""),
        ("GET", "/batch_x"),
        ("POST", "/batch_x/cancel"),
    ):
        answer = http.request(
            method, f"{url}/v1/batches{path}", json={} if method == "POST" else None
        )
        assert answer.status_code == 501, path
        assert answer.json()["error"]["code"] == "storage_not_configured"
