"""What Anthropic's batches refuse, and of which nothing is left then."""

from __future__ import annotations

import json
from http.client import HTTPConnection

import anthropic
import pytest
from anthropic import Anthropic

from tests.e2e.batches.test_message_batches import PATH, ask, message_files, of
from tests.harness.client import http
from tests.harness.fleet import Process, Stack

GATEWAY = {"api_keys": "team:k-team", "max_body_bytes": 1 << 20}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, '{"requests": [...]}'),
        (b"[]", 400, '{"requests": [...]}'),
        (b"{}", 400, '{"requests": [...]}'),
        (b'{"requests": {}}', 400, '{"requests": [...]}'),
        (b'{"model": "x", "requests": []}', 400, '{"requests": [...]}'),
        (b'{"requests": [], "model": "x"}', 400, '{"requests": [...]}'),
        (b'{"requests": []}', 400, "`requests` is empty"),
        (b'{"requests": [', 400, "ends too early"),
        (b'{"requests": [7]}', 400, "requests.0: must be an object"),
        (b'{"requests": [{"custom_id": "a", "params": {}},]}', 400, "requests.1: must be"),
        (b'{"requests": [{"custom_id": "a", "params": {}} 1]}', 400, "before requests.1"),
        (b'{"requests": [{"custom_id": "a", "params": {}}]}]', 400, '{"requests": [...]}'),
        (b'{"requests": [{"custom_id": "a", "params": {]}]}', 400, "requests.0: JSON is malformed"),
        (b'{"requests": [{"custom_id": "a", "params": {"x": 01}}]}', 400, "requests.0: JSON is"),
        (b'{"requests": [{"params": {}}]}', 400, "missing required field `custom_id`"),
        (b'{"requests": [{"custom_id": "a"}]}', 400, "missing required field `params`"),
        (b'{"requests": [{"custom_id": "a", "params": []}]}', 400, "requests.0.params: must be"),
        (b'{"requests": [{"custom_id": 1, "params": {}}]}', 400, "Expected a string"),
        (b'{"requests": [{"custom_id": "", "params": {}}]}', 400, "requests.0.custom_id"),
        (b'{"requests": [{"custom_id": "a b", "params": {}}]}', 400, "requests.0.custom_id"),
        (b'{"requests": [{"custom_id": "%s", "params": {}}]}' % (b"x" * 65), 400, "custom_id"),
        (b'{"requests": [{"custom_id": "\xff", "params": {}}]}', 400, "requests.0"),
        (b'{"requests": [{"custom_id": "a", "params": {}, "x": 1}]}', 400, "unknown field `x`"),
        (b'{"requests": [{"custom_id": "a", "params": {}}, {"custom_id": "a", "params": {}}]}',
         400, "requests.1.custom_id: 'a' is there twice"),
        (b'{"requests": [{"custom_id": "a", "params": {"x": %s1%s}}]}' % (b"[" * 200, b"]" * 200),
         400, "nested too deeply"),
        (b'{"requests": [{"custom_id": "a", "params": {"x": "%s"}}]}' % (b"x" * (1 << 20)),
         413, "larger than 1048576 bytes"),
    ],
)  # fmt: skip
def test_what_is_refused(fleet: Process, body: bytes, status: int, message: str) -> None:
    headers = {"x-api-key": "k-team", "content-type": "application/json"}
    answer = http.post(f"{fleet.url}{PATH}", content=body, headers=headers)
    error = answer.json()
    assert (answer.status_code, error["type"]) == (status, "error")
    kind = "invalid_request_error" if status == 400 else "request_too_large"
    assert error["error"]["type"] == kind
    assert message in error["error"]["message"]


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(fleet: Process) -> None:
    connection = HTTPConnection(fleet.url.removeprefix("http://"), timeout=20)
    connection.putrequest("POST", PATH)
    connection.putheader("x-api-key", "k-team")
    connection.putheader("content-type", "application/json")
    connection.putheader("content-length", str((256 << 20) + 1))
    connection.endheaders()
    answer = connection.getresponse()
    assert (answer.status, json.load(answer)["error"]["type"]) == (413, "request_too_large")
    connection.close()
    form = ask(fleet, "POST", PATH, files={"file": b"x"})
    assert (form.status_code, form.json()["type"]) == (415, "error")


def test_nothing_is_left_of_what_is_refused(fleet: Process) -> None:
    before = message_files(fleet)
    requests = [of(f"r{n}") for n in range(2000)]
    client = Anthropic(base_url=fleet.url, api_key="k-team", max_retries=0)
    with client, pytest.raises(anthropic.BadRequestError, match=r"requests\.2000\.custom_id"):
        client.messages.batches.create(requests=[*requests, of("r7")])
    assert message_files(fleet) == before


def test_without_storage(redis_url: str, stack: Stack) -> None:
    url = stack.gateway().url
    for method, path in (
        ("GET", ""), ("POST", ""), ("GET", "/x"), ("POST", "/x/cancel"), ("DELETE", "/x"),
        ("GET", "/x/results"),
    ):  # fmt: skip
        body = {} if method == "POST" else None
        answer = http.request(method, f"{url}{PATH}{path}", json=body)
        assert answer.status_code == 501, path
        error = {"type": "api_error", "code": "storage_not_configured"}
        assert error.items() <= answer.json()["error"].items()
