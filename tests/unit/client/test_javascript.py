"""The JavaScript of shared/client/README.md: with Node's `fetch`, and with OpenAI's SDK for Node.

Skipped without Node 18 or newer. The SDK is installed into .cache/ once; without it only the tests
that need it are skipped.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.settings import ROOT
from tests.unit.client.stub_gateway import JOB, StubGateway, openai_events

NODE = shutil.which("node")
CODE = re.search(r"```js\n(.*?)```", (ROOT / "shared/client/README.md").read_text(), re.DOTALL)
CACHE = ROOT / ".cache/node"
TEXTS = ["One", " two", " drei é\U0001f600", '"\\n: ']
EVENTS = openai_events(*TEXTS)
DATA = b"".join(event for event in EVENTS if not event.startswith(b":"))
PLAIN = """
const answer = await resumingFetch(urls)("http://flotilla/v1/chat/completions?a=b",
    { method: "POST", body: "{}", headers: { authorization: "Bearer k" } });
show({ status: answer.status, text: await answer.text() });
"""
EVERY_POSITION = """
const texts = new Set();
for (let n = 0; n < rounds; n++) {
  const answer = await resumingFetch(urls)("http://flotilla/v1/x", { method: "POST", body: "{}" });
  texts.add(await answer.text());
}
show([...texts]);
"""
SDK = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: "http://flotilla/v1", apiKey: "k", maxRetries: 0,
    fetch: resumingFetch(urls) });
const stream = await client.chat.completions.create({ model: "m", messages: [], stream: true });
const texts = [];
for await (const chunk of stream) texts.push(chunk.choices[0].delta.content);
show(texts);
"""


def node_version() -> int:
    if NODE is None:
        return 0
    done = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=False)
    found = re.match(r"v(\d+)", done.stdout)
    return int(found[1]) if found else 0


pytestmark = pytest.mark.skipif(node_version() < 18, reason="there is no Node 18 or newer")


@pytest.fixture
def stubs() -> Iterator[Callable[..., StubGateway]]:
    """Makes gateways."""
    made: list[StubGateway] = []

    def make(**of: Any) -> StubGateway:
        made.append(StubGateway(EVENTS, **of))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def sdk() -> None:
    """OpenAI's SDK for Node, in .cache/node."""
    if (CACHE / "node_modules/openai/package.json").exists():
        return
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("there is no npm to install OpenAI's SDK with")
    CACHE.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--no-save", "--ignore-scripts", "--prefix", str(CACHE), "openai@7"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm did not install OpenAI's SDK within 120 s")
    if done.returncode:
        pytest.skip(f"npm could not install OpenAI's SDK: {done.stderr.decode()[-300:]}")


def run(script: str, gateways: list[StubGateway], folder: Path, **values: Any) -> Any:
    """What the script shows."""
    assert CODE is not None
    folder.mkdir(parents=True, exist_ok=True)
    urls = [gateway.url for gateway in gateways]
    lines = [f"const {name} = {json.dumps(value)};" for name, value in values.items()]
    lines += [
        f"const urls = {json.dumps(urls)};",
        "const show = (it) => console.log(JSON.stringify(it));",
    ]
    path = folder / "script.mjs"
    path.write_text("\n".join([CODE[1], *lines, script]))
    assert NODE is not None
    done = subprocess.run([NODE, path], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_stream_that_breaks_anywhere(stubs: Callable[..., StubGateway], tmp_path: Path) -> None:
    first, second = stubs(), stubs()
    first.breaks = list(range(0, first.response_bytes, 3))
    rounds = len(first.breaks)
    texts = run(EVERY_POSITION, [first, second], tmp_path, rounds=rounds)
    assert texts == [DATA.decode()]
    assert not first.breaks


def test_whole_answers_and_statuses(stubs: Callable[..., StubGateway], tmp_path: Path) -> None:
    busy, broken, up = (
        stubs(statuses=[503]),
        stubs(whole=b'{"a": 1}', breaks=[90]),
        stubs(whole=b'{"a": 1}'),
    )
    shown = run(PLAIN, [busy, broken, up], tmp_path)
    assert shown == {"status": 200, "text": '{"a": 1}'}
    sent = [*busy.requests, *broken.requests, *up.requests]
    assert len({request.headers["idempotency-key"] for request in sent}) == 1
    assert {request.headers["x-flotilla-on-disconnect"] for request in sent} == {"keep_for=30"}
    assert {request.path for request in sent} == {"/v1/chat/completions?a=b"}
    refusing = stubs(statuses=[400])
    assert run(PLAIN, [refusing], tmp_path)["status"] == 400


def test_a_gateway_that_stops_in_order(stubs: Callable[..., StubGateway], tmp_path: Path) -> None:
    first, second = stubs(), stubs()
    error = b'data: {"error": {"message": "x", "code": "gateway_stopped"}}\n\n'
    first.events = [*EVENTS[:3], error]
    assert run(PLAIN, [first, second], tmp_path)["text"] == DATA.decode()
    assert second.requests[0].path.startswith(f"/jobs/{JOB}/stream?after=2&crc32=")
    assert second.requests[0].headers["authorization"] == "Bearer k"


@pytest.mark.usefixtures("sdk")
def test_openais_sdk(stubs: Callable[..., StubGateway]) -> None:
    first, second = stubs(), stubs()
    first.breaks = [first.response_bytes - 350]
    assert run(SDK, [first, second], CACHE) == TEXTS
    assert [request.method for request in second.requests] == ["GET"]
