"""Calls and streams through the resuming transports, with gateways that break in every way."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
from openai import (
    APIConnectionError,
    AsyncOpenAI,
    DefaultAsyncHttpxClient,
    DefaultHttpxClient,
    OpenAI,
)

from shared.client import httpx2
from shared.client.async_transport import AsyncResumingTransport
from shared.client.retries import Limits
from shared.client.transport import ResumingTransport
from tests.unit.client.stub_gateway import ANTHROPIC_EVENTS, JOB, StubGateway, openai_events

EVENTS = openai_events("One", " two", " drei é\U0001f600", '"\\n')
ANSWER = b"".join(EVENTS)
DATA = b"".join(event for event in EVENTS if not event.startswith(b":"))
QUICK = Limits(attempts=6, give_up_s=5, shortest_delay_s=0.001, longest_delay_s=0.002)
BODY = {"model": "m", "messages": [], "stream": True}
CHAT = "http://flotilla/v1/chat/completions"

Post = Callable[..., bytes]


def sync_transport(urls: list[str], limits: Limits = QUICK) -> ResumingTransport:
    # Without certificates, whose loading takes longer than a request.
    return ResumingTransport(urls, limits, httpx.HTTPTransport(verify=False))


def read(gateways: list[StubGateway], body: Any = BODY, limits: Limits = QUICK, **of: Any) -> bytes:
    transport = sync_transport([each.url for each in gateways], limits)
    with (
        httpx.Client(transport=transport) as client,
        client.stream("POST", CHAT, json=body, **of) as response,
    ):
        return b"".join(response.iter_raw())


def read_async(
    gateways: list[StubGateway], body: Any = BODY, limits: Limits = QUICK, **of: Any
) -> bytes:
    async def run() -> bytes:
        inner = httpx.AsyncHTTPTransport(verify=False)
        transport = AsyncResumingTransport([each.url for each in gateways], limits, inner)
        async with (
            httpx.AsyncClient(transport=transport) as client,
            client.stream("POST", CHAT, json=body, **of) as response,
        ):
            return b"".join([part async for part in response.aiter_raw()])

    return asyncio.run(run())


@pytest.fixture(params=[read, read_async], ids=["sync", "async"])
def post(request: pytest.FixtureRequest) -> Post:
    """Sends one request and returns the bytes of its answer."""
    return request.param


@pytest.fixture
def stubs() -> Iterator[Callable[..., StubGateway]]:
    """Makes gateways."""
    made: list[StubGateway] = []

    def make(events: Any = EVENTS, **of: Any) -> StubGateway:
        made.append(StubGateway(events, **of))
        return made[-1]

    yield make
    for each in made:
        each.close()


def without_comments(data: bytes) -> bytes:
    return re.sub(rb"(?m)^:.*\n", b"", data)


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("chunk_bytes", [1 << 16, 7])
def test_a_stream_that_breaks_anywhere_goes_on_with_the_exact_bytes(
    post: Post, stubs: Callable[..., StubGateway], chunk_bytes: int, resets: bool
) -> None:
    first, second = stubs(chunk_bytes=chunk_bytes, resets=resets), stubs()
    # How an answer is taken apart is the same code for both transports.
    every = post is read_async and chunk_bytes > 7 and not resets
    for position in range(0, first.response_bytes, 1 if every else 17):
        first.breaks = [position]
        data = post([first, second])
        assert without_comments(data) == DATA, position
        assert data.count(b": ") == ANSWER.count(b": ") or position


def test_every_connection_breaks_after_a_few_bytes(
    post: Post, stubs: Callable[..., StubGateway]
) -> None:
    first, second = stubs(), stubs()
    longest = max(map(len, EVENTS)) + 200  # a head and an event
    first.breaks, second.breaks = [longest] * 20, [longest] * 20
    assert without_comments(post([first, second])) == DATA
    assert len(first.breaks) <= 18
    assert {request.path for request in second.requests} != set()


def test_events_of_one_client_arrive_one_by_one_and_never_in_part(
    stubs: Callable[..., StubGateway],
) -> None:
    gateway = stubs(chunk_bytes=3)
    transport = sync_transport([gateway.url])
    with (
        httpx.Client(transport=transport) as client,
        client.stream("POST", CHAT, json=BODY) as response,
    ):
        for part in response.iter_raw():
            assert part.endswith(b"\n\n") or (part.startswith(b":") and part.endswith(b"\n"))


def test_a_proxys_end_without_a_mark_is_checked(
    post: Post, stubs: Callable[..., StubGateway]
) -> None:
    head = stubs(ends=False)
    lengths = [head.response_bytes - n for n in range(len(ANSWER))]
    for position in lengths[:: len(lengths) // 17]:
        first, second = stubs(ends=False, breaks=[position]), stubs()
        assert without_comments(post([first, second])) == DATA


def test_a_stream_without_a_last_event_ends_when_a_gateway_has_no_more(
    post: Post, stubs: Callable[..., StubGateway]
) -> None:
    gateway = stubs(EVENTS[:3])
    assert post([gateway]) == b"".join(EVENTS[:3])
    assert [request.method for request in gateway.requests] == ["POST", "GET"]


@pytest.mark.parametrize("status", [404, 409, 500])
def test_the_check_of_an_end_changes_nothing_where_it_is_refused(
    post: Post, stubs: Callable[..., StubGateway], status: int
) -> None:
    gateway = stubs(EVENTS[:3], statuses=[0] + [status] * 20)
    assert post([gateway]) == b"".join(EVENTS[:3])


def test_other_formats_of_events(post: Post, stubs: Callable[..., StubGateway]) -> None:
    first, second = stubs(ANTHROPIC_EVENTS), stubs(ANTHROPIC_EVENTS)
    for position in range(0, first.response_bytes, 7):
        first.breaks = [position]
        assert post([first, second]) == b"".join(ANTHROPIC_EVENTS)
    first.requests.clear()
    assert post([first]) == b"".join(ANTHROPIC_EVENTS)
    assert len(first.requests) == 1, "the last event is recognised"


@pytest.mark.parametrize("code", ["gateway_stopped", "redis_unavailable"])
def test_an_error_of_the_gateway_alone_is_not_passed_on(
    post: Post, stubs: Callable[..., StubGateway], code: str
) -> None:
    error = f'data: {{"error": {{"message": "x", "code": "{code}"}}}}\n\n'.encode()
    first, second = stubs([*EVENTS[:3], error]), stubs()
    assert without_comments(post([first, second])) == DATA
    alone = stubs([*EVENTS[:3], error], statuses=[0] + [503] * 20)
    assert post([alone]) == b"".join([*EVENTS[:3], error])


def test_an_error_of_the_job_ends_the_stream(post: Post, stubs: Callable[..., StubGateway]) -> None:
    events = [*EVENTS[:3], b'data: {"error": {"message": "x", "code": "worker_lost"}}\n\n']
    gateway = stubs(events)
    assert post([gateway]) == b"".join(events)
    assert len(gateway.requests) == 1


def test_text_that_looks_like_an_error_is_text(
    post: Post, stubs: Callable[..., StubGateway]
) -> None:
    events = openai_events('"error": {"code": "gateway_stopped"}', "[DONE]", "event: message_stop")
    assert post([stubs(events)]) == b"".join(events)


@pytest.mark.parametrize("status", [404, 409])
def test_a_stream_that_is_gone_raises_the_original_error(
    post: Post, stubs: Callable[..., StubGateway], status: int
) -> None:
    gateway = stubs(statuses=[0, status])
    gateway.breaks = [gateway.response_bytes - 30]
    gateway.statuses = [0, status]
    with pytest.raises(httpx.RemoteProtocolError):
        post([gateway])


def test_a_job_that_failed_without_output_is_an_error_event(
    post: Post, stubs: Callable[..., StubGateway]
) -> None:
    gateway = stubs()
    gateway.breaks, gateway.statuses = [gateway.response_bytes - len(ANSWER)], [0, 400]
    assert post([gateway]) == (b'data: {"error": {"message": "no", "code": "refused"}}\n\n')


def test_attempts_are_limited(post: Post, stubs: Callable[..., StubGateway]) -> None:
    gateway = stubs()
    n_bytes = gateway.response_bytes
    gateway.breaks = [n_bytes - 30, *[10] * 50]
    with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
        post([gateway])
    assert len(gateway.requests) == QUICK.attempts


def test_the_order_of_gateways(post: Post, stubs: Callable[..., StubGateway]) -> None:
    down, busy, up = stubs(), stubs(statuses=[503]), stubs()
    down.close()
    assert post([down, busy, up]) == ANSWER
    assert (len(busy.requests), len(up.requests)) == (1, 1)
    assert busy.requests[0].headers["host"] == busy.url.removeprefix("http://")


@pytest.mark.parametrize("status", [502, 503, 504])
def test_whole_requests_are_retried_with_one_idempotency_key(
    post: Post, stubs: Callable[..., StubGateway], status: int
) -> None:
    answer = json.dumps({"text": "x" * 3000}).encode()
    first, second = stubs(whole=answer, statuses=[status]), stubs(whole=answer)
    assert post([first, second], {"model": "m"}) == answer
    keys = {request.headers["idempotency-key"] for request in first.requests + second.requests}
    assert len(keys) == 1
    assert len(next(iter(keys)).removeprefix("flotilla-retry-")) == 36
    for position in range(0, first.response_bytes, 100):
        first.breaks = [position]
        assert post([first, second], {"model": "m"}) == answer


def test_a_status_that_stays_is_the_answer(
    stubs: Callable[..., StubGateway],
) -> None:
    gateway = stubs(statuses=[503] * 50)
    with httpx.Client(transport=sync_transport([gateway.url])) as client:
        response = client.post(CHAT, json=BODY)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "refused")
    assert len(gateway.requests) == QUICK.attempts


def test_other_statuses_are_not_retried(stubs: Callable[..., StubGateway]) -> None:
    gateway = stubs(statuses=[400, 500])
    with httpx.Client(transport=sync_transport([gateway.url])) as client:
        assert client.post(CHAT, json=BODY).status_code == 400
        assert client.post(CHAT, json=BODY).status_code == 500


def test_headers_of_the_caller_win(post: Post, stubs: Callable[..., StubGateway]) -> None:
    gateway, mine = stubs(), {"Idempotency-Key": "k", "X-Flotilla-On-Disconnect": "cancel"}
    post([gateway], headers=mine)
    post([gateway])
    sent = [
        (each.headers["idempotency-key"] == "k", each.headers["x-flotilla-on-disconnect"])
        for each in gateway.requests
    ]
    assert sent == [(True, "cancel"), (False, "keep_for=30")]


def test_a_request_for_the_rest_has_the_key_and_no_body(
    post: Post, stubs: Callable[..., StubGateway]
) -> None:
    gateway = stubs()
    gateway.breaks = [gateway.response_bytes - 40]
    post([gateway], headers={"Authorization": "Bearer k", "Content-Type": "application/json"})
    rest = gateway.requests[1]
    assert rest.headers["authorization"] == "Bearer k"
    assert not {"content-type", "content-length", "idempotency-key"} & set(rest.headers)
    assert rest.path.startswith(f"/jobs/{JOB}/stream?after=3&crc32=")


@pytest.mark.parametrize(("headers", "cancels"), [({}, True), ({"idempotency-key": "k"}, False)])
def test_a_stream_closed_before_its_end_cancels_its_job(
    stubs: Callable[..., StubGateway], headers: dict[str, str], cancels: bool
) -> None:
    gateway = stubs(EVENTS[:3] * 5000)
    transport = sync_transport([gateway.url])
    with (
        httpx.Client(transport=transport) as client,
        client.stream("POST", CHAT, json=BODY, headers=headers) as response,
    ):
        next(response.iter_raw())
    paths = [request.path for request in gateway.requests[1:]]
    assert paths == ([f"/jobs/{JOB}/cancel"] if cancels else [])


def test_a_callers_own_request_for_the_rest_is_resumed(stubs: Callable[..., StubGateway]) -> None:
    import zlib

    gateway = stubs()
    crc32 = zlib.crc32(EVENTS[1])
    url = f"http://any/jobs/{JOB}/stream?after=1&crc32={crc32:08x}"
    gateway.breaks = [gateway.response_bytes - len(EVENTS[0] + EVENTS[1]) - 30]
    with httpx.Client(transport=sync_transport([gateway.url])) as client:
        assert without_comments(client.get(url).content) == DATA.removeprefix(EVENTS[1])
    assert len(gateway.requests) == 2


def test_a_slow_reader_is_not_a_silent_gateway(stubs: Callable[..., StubGateway]) -> None:
    gateway = stubs()
    client = httpx.Client(transport=ResumingTransport([gateway.url]), timeout=0.3)
    with client, client.stream("POST", CHAT, json=BODY) as response:
        assert response.read() == ANSWER


def test_a_base_path_and_v1_in_a_gateways_url(stubs: Callable[..., StubGateway]) -> None:
    gateway = stubs(whole=b"{}")
    for suffix in ("", "/", "/v1", "/v1/", "/team/v1"):
        with httpx.Client(transport=sync_transport([gateway.url + suffix])) as client:
            client.post(CHAT + "?a=%20b", json={})
    tail = "/v1/chat/completions?a=%20b"
    assert [request.path for request in gateway.requests] == [tail] * 4 + ["/team" + tail]


@pytest.mark.parametrize("urls", [[], ["localhost:8000"], ["ftp://a"], ["http://"]])
def test_wrong_urls_are_refused(urls: list[str]) -> None:
    with pytest.raises(ValueError, match="gateway"):
        ResumingTransport(urls)


def test_openais_clients(stubs: Callable[..., StubGateway]) -> None:
    first, second = stubs(), stubs()
    urls = [first.url, second.url]
    expected = ["One", " two", " drei é\U0001f600", '"\\n']
    # OpenAI's SDK has changed from httpx to httpx2.
    of_httpx = issubclass(DefaultHttpxClient, httpx.Client)
    default = ResumingTransport if of_httpx else httpx2.ResumingTransport
    clients: list[Any] = [
        httpx.Client(transport=ResumingTransport(urls, QUICK)),
        DefaultHttpxClient(transport=default(urls, QUICK)),  # type: ignore[arg-type]
    ]
    for http_client in clients:
        first.breaks = [first.response_bytes - 350]
        with OpenAI(base_url="http://flotilla/v1", api_key="k", http_client=http_client) as client:
            stream = client.chat.completions.create(model="m", messages=[], stream=True)
            assert [chunk.choices[0].delta.content for chunk in stream] == expected
    assert len(second.requests) == 2
    assert all(request.method == "GET" for request in second.requests)


@pytest.mark.parametrize("default", [False, True])
async def test_openais_async_client(stubs: Callable[..., StubGateway], default: bool) -> None:
    first, second = stubs(), stubs()
    first.breaks = [first.response_bytes - 350]
    urls = [first.url, second.url]
    http_client: Any = httpx.AsyncClient(transport=AsyncResumingTransport(urls, QUICK))
    if default and not issubclass(DefaultAsyncHttpxClient, httpx.AsyncClient):
        http_client = DefaultAsyncHttpxClient(transport=httpx2.AsyncResumingTransport(urls, QUICK))
    async with AsyncOpenAI(
        base_url="http://flotilla/v1", api_key="k", http_client=http_client
    ) as client:
        stream = await client.chat.completions.create(model="m", messages=[], stream=True)
        texts = [chunk.choices[0].delta.content async for chunk in stream]
    assert "".join(map(str, texts)) == 'One two drei é\U0001f600"\\n'
    assert [request.method for request in second.requests] == ["GET"]


async def test_a_silent_gateway_is_left_for_another(stubs: Callable[..., StubGateway]) -> None:
    class Silent(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield EVENTS[1][:20]
            raise httpx.ReadTimeout("silent")

    class Inner(httpx.AsyncHTTPTransport):
        n = 0

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            self.n += 1
            timeouts.append(request.extensions["timeout"]["read"])
            response = await super().handle_async_request(request)
            if self.n == 1:
                await response.aclose()
                return httpx.Response(200, headers=response.headers, stream=Silent())
            return response

    timeouts: list[float] = []
    gateway = stubs()
    transport = AsyncResumingTransport([gateway.url], Limits(silence_s=7), Inner())
    async with httpx.AsyncClient(transport=transport, timeout=600) as client:
        response = await client.post(CHAT, json=BODY)
        assert response.content == ANSWER
    assert timeouts == [7, 7]


def test_openais_client_gets_the_errors_that_it_expects() -> None:
    limits = Limits(attempts=2, shortest_delay_s=0.001)
    transport: Any = httpx2.ResumingTransport(["http://127.0.0.1:1"], limits)
    if issubclass(DefaultHttpxClient, httpx.Client):
        transport = ResumingTransport(["http://127.0.0.1:1"], limits)
    http_client = DefaultHttpxClient(transport=transport)
    with (
        OpenAI(base_url="http://a/v1", api_key="k", max_retries=0, http_client=http_client) as all_,
        pytest.raises(APIConnectionError),
    ):
        all_.chat.completions.create(model="m", messages=[])
