"""An id of another tenant is answered as one that nobody has: over every route with an id, with the
same answer, after the same look-ups in Redis, so that nothing tells the two apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
import redis

from gateway.app import create_app
from tests.harness.fleet import Stack
from tests.harness.servers import RedisServer
from tests.harness.settings import Settings
from tests.harness.waiting import wait_for

KEYS = {"api_keys": "team:k-team,other:k-other"}
SIMULATED = {"sim_step_ms": 1, "sim_step_us_per_seq": 0}
OF_NO_TENANT = {"name", "model"}
"""Parameters of paths that are not an id of a tenant's thing. Operators' routes are left out."""
BODIES: dict[str, Any] = {
    "/v1/conversations/{conversation_id}": {"metadata": {}},
    "/v1/conversations/{conversation_id}/items": {
        "items": [{"type": "message", "role": "user", "content": "x"}]
    },
    "/v1/uploads/{upload_id}/complete": {"part_ids": ["part_1"]},
    "/v1/webhook_endpoints/{endpoint_id}/test": {"event_type": "job.completed"},
}
FORMS = {"/v1/uploads/{upload_id}/parts": {"data": b"x"}}
FURTHER = [
    ("GET", "/v1/responses/{response_id}?stream=true"),
    ("GET", "/jobs/{job_id}?wait=1"),
    ("GET", "/v1/conversations/{conversation_id}/items?limit=1"),
]


def routes() -> Iterator[tuple[str, str]]:
    """Method and path of each route of the application with an id in it."""
    for route in create_app(Settings()).fastapi.router.routes:
        waiting = [route]
        while waiting:
            each = waiting.pop()
            waiting += getattr(each, "routes", None) or []
            path = getattr(each, "path", "")
            ids = set(re.findall(r"{(\w+)(?::\w+)?}", path)) - OF_NO_TENANT
            if ids and not path.startswith("/admin"):
                yield from ((method, path) for method in getattr(each, "methods", None) or ())


ROUTES = [*sorted(set(routes())), *FURTHER]


class Things:
    """One thing of each kind that belongs to a tenant, and those who ask for it."""

    def __init__(self, url: str, store: redis.Redis) -> None:
        self.store = store
        self.team, self.other = (
            httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=30)
            for key in ("k-team", "k-other")
        )
        self.ids = self._made()

    def _post(self, path: str, **more: Any) -> Any:
        answer = self.team.post(path, **more)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def _made(self) -> dict[str, str]:
        call = {"model": "simulated", "prompt": "x", "max_tokens": 2}
        job = self._post("/jobs", json={"endpoint": "/v1/completions", "body": call})["id"]
        wait_for(lambda: self.team.get(f"/jobs/{job}").json()["finished_at"], "it has ended")
        item = {"type": "message", "role": "user", "content": "x"}
        conversation = self._post("/v1/conversations", json={"items": [item]})["id"]
        items = self.team.get(f"/v1/conversations/{conversation}/items").json()["data"]
        line = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}'
        file = self._post(
            "/v1/files", files={"file": ("in.jsonl", line)}, data={"purpose": "batch"}
        )["id"]
        upload = {"filename": "f", "purpose": "batch", "bytes": 10, "mime_type": "text/plain"}
        batch = {"endpoint": "/v1/completions", "completion_window": "24h", "input_file_id": file}
        message = {"model": "simulated", "max_tokens": 2, "messages": [_MESSAGE]}
        messages = {"requests": [{"custom_id": "a", "params": message}]}
        hook = {"name": "n", "url": "http://127.0.0.1:9/", "event_types": ["job.completed"]}
        return {
            "job_id": job,
            "response_id": self._post(
                "/v1/responses", json={"model": "simulated", "input": "x", "max_output_tokens": 2}
            )["id"],
            "conversation_id": conversation,
            "item_id": items[0]["id"],
            "file_id": file,
            "upload_id": self._post("/v1/uploads", json=upload)["id"],
            "batch_id": self._post("/v1/batches", json=batch)["id"],
            "message_batch_id": self._post("/v1/messages/batches", json=messages)["id"],
            "endpoint_id": self._post("/v1/webhook_endpoints", json=hook)["id"],
            "webhook_id": "wh_" + "0" * 24,
        }

    def answer(self, method: str, path: str, ids: dict[str, str]) -> tuple[int, str]:
        """The other tenant's: its status, and its body with `ID` in place of each id."""
        if path.startswith("/v1/messages"):
            ids = ids | {"batch_id": ids["message_batch_id"]}
        template = path.partition("?")[0]
        body: dict[str, Any] = {}
        if template in FORMS:
            body["files"] = FORMS[template]
        elif method == "POST":
            body["json"] = BODIES.get(template, {})
        answer = self.other.request(method, path.format(**ids), **body)
        text = answer.text
        for value in ids.values():
            text = text.replace(value, "ID")
        return answer.status_code, re.sub(r"req_\w+", "REQUEST", text)

    def looked_up(self, method: str, path: str, ids: dict[str, str]) -> list[str]:
        """The commands of Redis, those in scripts too, that an answer of the other tenant takes and
        that have one of the ids in them, with `ID` in its place."""
        shown = [self._digits(value) for value in ids.values()]
        with self.store.monitor() as monitor:
            self.answer(method, path, ids)
            self.store.echo("the end")
            commands = []
            for found in monitor.listen():
                command = str(found["command"])
                if command == "ECHO the end":
                    return commands
                if any(digits in command for digits in shown) and not command.startswith(_AGAIN):
                    commands.append(self._without(command, shown))
        raise AssertionError("not reached")

    @staticmethod
    def _digits(value: str) -> str:
        """The random part of an id, which a response shares with its job."""
        return value.rpartition("_")[2]

    @staticmethod
    def _without(command: str, shown: list[str]) -> str:
        for digits in shown:
            command = command.replace(digits, "ID")
        return re.sub(r"\b\d{13,}\b", "TIME", command)


_AGAIN = "EXISTS "
"""Scripts ask once more, in the same call, whether a job's record is gone or damaged."""
_MESSAGE = {"role": "user", "content": "x"}


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Things]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    folder = tmp_path_factory.mktemp("fleet")
    stack = Stack(server.url, folder)
    try:
        gateway = stack.gateway(
            storage_url=str(folder / "files"), webhook_allow="127.0.0.1", **KEYS
        )
        stack.worker(**SIMULATED)
        with server.client() as client:
            found = Things(gateway.url, client)
            with closing(found.team), closing(found.other):
                yield found
    finally:
        stack.close()
        server.stop()


def unknown(ids: dict[str, str]) -> dict[str, str]:
    """Ids of the same form and shard that nobody has."""
    return {name: value[:-8] + "0badc0de" for name, value in ids.items()}


def test_every_kind_of_id_is_made(things: Things) -> None:
    names = {name for _, path in ROUTES for name in re.findall(r"{(\w+)}", path)}
    assert names <= things.ids.keys()
    assert len(ROUTES) > 35


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_another_tenants_id_is_answered_as_an_unknown_one(
    things: Things, method: str, path: str
) -> None:
    foreign = things.answer(method, path, things.ids)
    assert foreign == things.answer(method, path, unknown(things.ids))
    assert foreign[0] == 404


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_another_tenants_id_takes_the_same_look_ups_as_an_unknown_one(
    things: Things, method: str, path: str
) -> None:
    foreign = things.looked_up(method, path, things.ids)
    assert foreign == things.looked_up(method, path, unknown(things.ids))
    assert foreign


def test_all_is_still_there(things: Things) -> None:
    for path in (
        "/jobs/{job_id}",
        "/v1/responses/{response_id}",
        "/v1/conversations/{conversation_id}/items/{item_id}",
        "/v1/files/{file_id}",
        "/v1/batches/{batch_id}",
        "/v1/messages/batches/{message_batch_id}",
        "/v1/webhook_endpoints/{endpoint_id}",
    ):
        assert things.team.get(path.format(**things.ids)).status_code == 200
