"""Texts of errors: each names the field, and has the words of JSON, not those of Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.client import CHAT, MODEL, chat
from tests.harness.fleet import Stack
from tests.harness.keys import KEYS, OPERATOR

NOT_OF_JSON = re.compile(
    r"\bb['\"]|<\w+[.:]|\b(dict|dictionary|NoneType|None|tuple|str|int|bool|float|True|False)\b"
    r"|pydantic|ValidationError|Input should|object at 0x|https?://"
)
RESPONSES, BATCHES, MESSAGES = "/v1/responses", "/v1/batches", "/v1/messages"
JOB: dict[str, Any] = {"body": chat(max_tokens=1)}
BATCH = {"input_file_id": "file", "endpoint": CHAT, "completion_window": "24h"}
RESPONSE = {"model": MODEL, "input": "x"}


@pytest.fixture(scope="module")
def api(module_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    module_stack.worker()
    folder: Path = tmp_path_factory.mktemp("files")
    settings: dict[str, Any] = {**KEYS, "storage_url": folder.as_uri()}
    gateway = module_stack.gateway(**settings)
    with httpx.Client(base_url=gateway.url, headers=OPERATOR, timeout=30) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        (CHAT, chat(model=3), ["`model`", "3"]),
        (CHAT, chat(stream="soon"), ["`stream`", '"soon"', "true or false"]),
        (CHAT, chat(service_tier="gold"), ["`service_tier`", '"gold"', "flex"]),
        (RESPONSES, RESPONSE | {"store": None, "background": {}}, ["`background`", "an object"]),
        (RESPONSES, RESPONSE | {"conversation": True}, ["`conversation`", "true"]),
        ("/jobs", {}, ["`body`", "missing"]),
        ("/jobs", {"body": None}, ["`body`", "null", "an object"]),
        ("/jobs", JOB | {"deadline_s": "soon"}, ["`deadline_s`", '"soon"', "number"]),
        ("/jobs", JOB | {"deadline_s": -1}, ["`deadline_s`", "-1", "0.001"]),
        ("/jobs", JOB | {"metadata": {"a": False}}, ["`metadata.a`", "false", "string"]),
        ("/jobs", JOB | {"webhooks": "x"}, ["`webhooks`", '"x"', "list"]),
        ("/jobs", JOB | {"lane": "slow"}, ["`lane`", '"slow"', "flex"]),
        ("/jobs", JOB | {"nope": 1}, ["`nope`", "metadata"]),
        ("/jobs", JOB | {"endpoint": "/v1/nope"}, ["`endpoint`", '"/v1/nope"']),
        ("/jobs", {"body": {"model": 7}}, ["`model`", "7"]),
        (BATCHES, BATCH | {"endpoint": "/x"}, ["`endpoint`", '"/x"', CHAT]),
        (BATCHES, BATCH | {"input_file_id": 3}, ["`input_file_id`", "3", "string"]),
        ("/v1/conversations", {"items": "x"}, ["`items`", '"x"', "list"]),
        (MESSAGES, chat(model=None), ["`model`", "missing"]),
        ("/admin/keys", {"tenant": None}, ["`tenant`", "null", "string"]),
    ],
)
def test_a_wrong_field(api: httpx.Client, path: str, body: Any, names: list[str]) -> None:
    check(api.post(path, json=body), names)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/jobs?limit=many", ["`limit`", '"many"', "integer"]),
        ("/jobs?limit=0", ["`limit`", "0", "1"]),
        ("/jobs?state=bogus", ["`state`", '"bogus"', "queued"]),
        ("/v1/files?order=up", ["`order`", '"up"', "asc"]),
        (f"{RESPONSES}/x?stream=maybe", ["`stream`", '"maybe"', "true or false"]),
        (f"{RESPONSES}/x?stream=true&starting_after=z", ["`starting_after`", '"z"']),
        ("/jobs/x/stream?after=z", ["`after`", '"z"']),
    ],
)
def test_a_wrong_parameter(api: httpx.Client, path: str, names: list[str]) -> None:
    check(api.get(path), names)


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ({"content-type": "text/plain"}, ["Content-Type", "'text/plain'"]),
        ({"x-flotilla-queue-deadline": "soon"}, ["`x-flotilla-queue-deadline`", '"soon"']),
        ({"x-flotilla-on-disconnect": "stay"}, ["`x-flotilla-on-disconnect`", '"stay"', "`keep`"]),
    ],
)
def test_a_wrong_header(api: httpx.Client, header: dict[str, str], names: list[str]) -> None:
    check(api.post(CHAT, json=chat(), headers=header), names)


def test_a_header_that_would_change_the_answer(api: httpx.Client) -> None:
    header = "x-amzn-sagemaker-session-id"
    check(api.post("/invocations", json=chat(), headers={header: "1"}), [f"`{header}`"])


def check(answer: httpx.Response, names: list[str]) -> None:
    assert 400 <= answer.status_code < 500, answer.text
    message = answer.json()["error"]["message"]
    assert [name for name in names if name not in message] == [], message
    assert NOT_OF_JSON.search(message) is None, message
    assert answer.headers["x-should-retry"] == "false"
