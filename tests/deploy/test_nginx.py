"""Two gateways behind a real nginx: streams, silence, resuming, TLS, paths and large bodies."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin
from zlib import crc32

import httpx
import pytest
from openai import DefaultHttpxClient, OpenAI

from tests.deploy.nginx import MISSING, NGINX, OPENSSL, Nginx
from tests.harness.client import CHAT, MODEL, chat
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for

pytestmark = pytest.mark.skipif(not (NGINX and OPENSSL), reason=MISSING)

KEY = {"authorization": "Bearer s3cret"}
LONG, ENDLESS = 800, 8000
"""Tokens: four seconds, and more than any test waits for."""
SILENCE_S, COMMENT_S = 3, 0.2
"""Where nginx is impatient, it gives up after so long without a byte; by default after 60 s. So
often a gateway sends a comment."""
MB = 1 << 20

SETTINGS = """
    proxy_http_version 1.1;
    proxy_buffering off;
    proxy_request_buffering off;
    proxy_set_header Connection "";
    proxy_set_header Host $http_host;
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    proxy_set_header X-Forwarded-Proto $scheme;
    client_max_body_size 0;
"""
"""What a proxy in front of an LLM should have."""
ALL = f"""
    location / {{ proxy_pass http://gateways; }}
    location /impatient/ {{ proxy_pass http://gateways/; proxy_read_timeout {SILENCE_S}s; }}
"""
SERVERS = {
    # What nginx does by itself: HTTP/1.0 to gateways, buffered answers, bodies of up to 1 MB.
    "plain": f"""{ALL}
        location /silent/ {{ proxy_pass http://silent/; proxy_read_timeout {SILENCE_S}s; }}
    """,
    "tuned": f"{SETTINGS} {ALL} location /doomed/ {{ proxy_pass http://doomed/; }}",
    "tls": f"{SETTINGS} {ALL}",
    "below": f"{SETTINGS} location /llm/ {{ proxy_pass http://gateways/; }}",
}
WITH_TLS = ["tls", "below"]
EVERYWHERE = ["plain", "tuned", "tls"]


@dataclass
class Fleet:
    """Gateways, a worker and the nginx in front."""

    nginx: Nginx
    worker: Process
    doomed: Process
    """A gateway that a test may kill; the others are for all tests."""

    def client(self, server: str = "tuned", path: str = "") -> httpx.Client:
        """A client of one of nginx' servers that trusts its certificate."""
        url = self.nginx.urls[server] + path
        return httpx.Client(base_url=url, headers=KEY, timeout=60, verify=self.trust())

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.nginx.certificate)


@pytest.fixture(scope="module")
def fleet(module_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("nginx")
    values: dict[str, Any] = {
        "api_keys": "team:s3cret",
        "keepalive_s": COMMENT_S,
        "storage_url": str(folder / "files"),
    }
    # A long lease: a worker that a test stops for a while is not lost.
    worker = module_stack.worker(sim_step_ms=5, sim_step_us_per_seq=0, lease_s=60)
    first, second, doomed = (module_stack.gateway(**values) for _ in range(3))
    silent = module_stack.gateway(**values | {"keepalive_s": 600})
    nginx = Nginx(
        folder,
        {
            "gateways": [first.url, second.url],
            "doomed": [doomed.url, second.url],
            "silent": [silent.url],
        },
        SERVERS,
        tls=WITH_TLS,
    )
    nginx.start()
    yield Fleet(nginx, worker, doomed)
    nginx.stop()


def streamed(tokens: int) -> dict[str, Any]:
    return chat(stream=True, max_tokens=tokens, min_tokens=tokens)


def state(api: httpx.Client, job_id: str) -> str:
    return str(api.get(f"/jobs/{job_id}").json()["state"])


@pytest.mark.parametrize("server", EVERYWHERE)
def test_both_gateways_answer(fleet: Fleet, server: str) -> None:
    with fleet.client(server) as api:
        answers = [api.post(CHAT, json=chat(max_tokens=4)) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len({answer.headers["x-upstream"] for answer in answers}) == 2


@pytest.mark.parametrize("server", EVERYWHERE)
def test_a_stream_flows_and_a_client_that_leaves_is_noticed(fleet: Fleet, server: str) -> None:
    with fleet.client(server) as api:
        with api.stream("POST", CHAT, json=streamed(ENDLESS)) as answer:
            assert next(line for line in answer.iter_lines() if line.startswith("data: "))
            job_id = answer.headers["x-flotilla-job-id"]
            assert state(api, job_id) == "in_progress"
        wait_for(lambda: state(api, job_id) == "cancelled", "the job is cancelled")


def pause(fleet: Fleet, lines: Iterator[str], comments: int) -> Iterator[str]:
    """Pass on a stream; behind its first data the worker stands still for so many comments."""
    yield next(line for line in lines if line.startswith("data: "))
    fleet.worker.stop(signal.SIGSTOP)
    try:
        for line in lines:
            comments -= line.startswith(":")
            if not comments:
                break
            yield line
    finally:
        fleet.worker.stop(signal.SIGCONT)
    yield from lines


@pytest.mark.parametrize("server", ["plain", "tuned"])
def test_a_stream_outlives_a_pause_that_is_longer_than_nginx_waits(
    fleet: Fleet, server: str
) -> None:
    comments = round(1.5 * SILENCE_S / COMMENT_S)
    with (
        fleet.client(server, "/impatient") as api,
        api.stream("POST", CHAT, json=streamed(LONG)) as answer,
    ):
        lines = [line for line in pause(fleet, answer.iter_lines(), comments) if line]
    assert lines[-1] == "data: [DONE]"
    assert sum(line.startswith(":") for line in lines) >= comments - 1


def test_without_comments_nginx_would_cut_it(fleet: Fleet) -> None:
    lines: list[str] = []
    with (
        fleet.client("plain", "/silent") as api,
        api.stream("POST", CHAT, json=streamed(LONG)) as answer,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        lines.extend(pause(fleet, answer.iter_lines(), comments=3))
    assert any(line.startswith("data: ") for line in lines)


def events_in(body: bytes) -> list[bytes]:
    """The complete events, without comments."""
    data = re.sub(rb"(?m)^:.*\n", b"", body)
    return [block + b"\n\n" for block in data.split(b"\n\n")[:-1]]


def rest_of(api: httpx.Client, job_id: str, had: list[bytes]) -> httpx.Response:
    """The stream of a job behind the events that a client has."""
    crc = crc32(b"".join(had))
    answer = api.get(f"/jobs/{job_id}/stream?after={len(had)}&crc32={crc:08x}")
    assert answer.status_code == 200, answer.text
    return answer


def test_a_stream_goes_on_through_the_other_gateway(fleet: Fleet) -> None:
    with fleet.client() as api:
        whole = api.post(CHAT, json=streamed(20))
        job_id, events = whole.headers["x-flotilla-job-id"], events_in(whole.content)
        assert events[-1] == b"data: [DONE]\n\n"
        rests = [rest_of(api, job_id, events[:5]) for _ in range(4)]
    assert {rest.content for rest in rests} == {b"".join(events[5:])}
    assert len({rest.headers["x-upstream"] for rest in rests}) == 2


def test_a_stream_goes_on_when_its_gateway_is_killed(fleet: Fleet) -> None:
    def through_the_doomed(answer: httpx.Response) -> bool:
        return fleet.doomed.url.endswith(answer.headers["x-upstream"])

    def read_to_the_end(answer: httpx.Response) -> bytes:
        had = b""
        with contextlib.suppress(httpx.RemoteProtocolError):
            for piece in answer.iter_raw():
                if not had:
                    fleet.doomed.kill()
                had += piece
        return had

    with fleet.client("tuned", "/doomed") as api:
        had = b""
        while not had:  # nginx takes turns
            with api.stream("POST", CHAT, json=streamed(LONG)) as answer:
                job_id = answer.headers["x-flotilla-job-id"]
                if through_the_doomed(answer):
                    had = read_to_the_end(answer)
        assert b"[DONE]" not in had
        rest = rest_of(api, job_id, events_in(had))
        assert not through_the_doomed(rest)
        assert b"".join(events_in(had)) + rest.content == api.get(f"/jobs/{job_id}/result").content


@pytest.mark.parametrize(("server", "path"), [("tls", ""), ("below", "/llm")])
def test_openais_client_through_tls_and_below_a_path(fleet: Fleet, server: str, path: str) -> None:
    url, key = fleet.nginx.urls[server], "s3cret"
    http = DefaultHttpxClient(verify=fleet.trust())
    messages: Any = [{"role": "user", "content": "hello"}]
    with OpenAI(base_url=f"{url}{path}/v1", api_key=key, http_client=http, max_retries=0) as openai:
        assert [model.id for model in openai.models.list()] == [MODEL]
        chunks = list(
            openai.chat.completions.create(
                model=MODEL, messages=messages, max_tokens=8, stream=True
            )
        )
    assert chunks[-1].choices[0].finish_reason == "length"


def test_the_page_and_its_files_below_a_path(fleet: Fleet) -> None:
    with fleet.client("below", "/llm") as api:
        assert_its_files_are_served(api, "/")


def test_the_description_and_its_files_below_a_path(fleet: Fleet) -> None:
    with fleet.client("below", "/llm") as api:
        assert_its_files_are_served(api, "/docs")


def assert_its_files_are_served(api: httpx.Client, path: str) -> None:
    """A browser would get everything that this page loads."""
    page = api.get(path)
    assert page.status_code == 200
    loaded = re.findall(r"""(?:src|href)="([^"#]+)"|url: '([^']+)'""", page.text)
    assert len(loaded) > 2
    for link in filter(None, (word for words in loaded for word in words)):
        answer = api.get(urljoin(str(page.url), link))
        assert answer.status_code == 200, link


@pytest.mark.parametrize("server", EVERYWHERE)
def test_a_trailing_slash_is_served_and_not_redirected(fleet: Fleet, server: str) -> None:
    with fleet.client(server) as api:
        listed = api.get("/v1/models/")
        assert listed.status_code == 200, listed.headers
        assert [model["id"] for model in listed.json()["data"]] == [MODEL]
        assert api.post(f"{CHAT}/", json=chat(max_tokens=4)).status_code == 200


@pytest.mark.parametrize("server", ["tuned", "tls"])
def test_a_large_file_arrives_whole(fleet: Fleet, server: str, tmp_path: Path) -> None:
    line = json.dumps({"padding": "x" * 1000}).encode() + b"\n"
    path = tmp_path / "large.jsonl"
    path.write_bytes(line * (20 * MB // len(line)))
    with fleet.client(server) as api:
        with path.open("rb") as file:
            sent = api.post("/v1/files", files={"file": file}, data={"purpose": "batch"})
        assert sent.status_code == 200, sent.text
        assert sent.json()["bytes"] == path.stat().st_size
        assert api.get(f"/v1/files/{sent.json()['id']}/content").content == path.read_bytes()


def test_a_large_request_is_answered(fleet: Fleet) -> None:
    body = chat(max_tokens=4, user="x" * 5 * MB)
    with fleet.client() as api:
        assert api.post(CHAT, json=body).status_code == 200
    with fleet.client("plain") as api:  # nginx' own limit, until `client_max_body_size` is set
        assert api.post(CHAT, json=body).status_code == 413
