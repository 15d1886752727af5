"""The commands' HTTP client: which gateway, which key, and errors with an exit code."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from gateway.cli.client_settings import ClientSettings
from gateway.cli.exit_codes import CommandError, ExitCode, of_status
from gateway.launcher import run_file
from gateway.listen_settings import is_loopback
from shared.client.connections import LIMITS, SOCKET_OPTIONS
from shared.client.sse import EventSplitter, field, is_comment
from shared.client.transport import ResumingTransport
from shared.platform.redis_url import without_password
from shared.platform.settings import SettingsError, load_settings

DEFAULT_URL = "http://127.0.0.1:8000"
_CONNECT_S = 3.0
_PAGE = 100
_SILENCE_S = 45.0
"""A stream without a byte for so long has lost its gateway, which sends a comment every 10 s."""
ATTEMPTS = 5
"""In a row, to take up a stream of events that has nothing new."""
RETRY_S = 0.3
_PATIENCE_S = 120.0
"""So long a command that follows something waits for a gateway that does not serve it."""


class Address(NamedTuple):
    """A gateway's URL, and the header with the API key."""

    url: str
    headers: dict[str, str]


class ServerEvent(NamedTuple):
    """One server-sent event; a comment has only `comment`."""

    name: str
    data: bytes
    id: str = ""
    comment: str = ""

    def json(self) -> Any:
        """The data, parsed."""
        return json.loads(self.data)


def address(url: str | None = None, key_file: Path | None = None) -> Address:
    """The gateway of the flag, else of FLOTILLA_URL, else of the `flotilla up` in this folder.

    The key is the first line of `key_file`, else FLOTILLA_API_KEY. Raises CommandError.
    """
    try:
        settings = load_settings(ClientSettings, url=url)
        key = settings.api_key.get_secret_value()
        if key_file is not None:
            key = key_file.read_text().partition("\n")[0].strip()
    except (SettingsError, OSError, UnicodeDecodeError) as error:
        raise CommandError(str(error), ExitCode.USAGE) from error
    if not key.isascii() or not key.isprintable():
        raise CommandError("the API key has other characters than ASCII", ExitCode.USAGE)
    run = run_file.running() if not settings.url else None
    found = settings.url or (run.gateway_url if run else DEFAULT_URL)
    if not found.startswith(("http://", "https://")):
        raise CommandError(
            f"a gateway's URL is http://host:port, not {found!r}: --url, FLOTILLA_URL",
            ExitCode.USAGE,
        )
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return Address(found.removesuffix("/").removesuffix("/v1"), headers)


def proxy_of(url: str) -> str | None:
    """The proxy that HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names for a URL; none for loopback."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:  # the client says what is wrong with it
        return None
    if is_loopback(host) or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


class Patience:
    """How long a command goes on while its gateway is away, or says that it may come back."""

    def __init__(self, client: GatewayClient) -> None:
        self._client = client
        self._since: float | None = None

    def wait(self, error: CommandError) -> None:
        """Wait before the next try. Raises an error that does not pass, and any after 120 s.

        A gateway that was never reached is none to wait for: its address may be wrong.
        """
        passes = error.retry_after_s is not None or (
            error.code in (ExitCode.UNREACHABLE, ExitCode.TIMED_OUT) and self._client.reached
        )
        now = time.monotonic()
        self._since = self._since or now
        if not passes or now - self._since > _PATIENCE_S:
            raise error
        time.sleep(min(max(error.retry_after_s or 0.0, RETRY_S), _PATIENCE_S))

    def end(self) -> None:
        """It serves: the next error is a new one."""
        self._since = None


class GatewayClient:
    """One gateway. Every method raises CommandError for an answer that is no success."""

    def __init__(self, where: Address, timeout_s: float = 30.0) -> None:
        """`timeout_s`: for each answer that is no stream."""
        self.url = where.url
        self.where = where
        self.timeout_s = timeout_s
        self.reached = False
        """A connection to it was made."""
        self.proxy = proxy_of(where.url)
        limits = httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_S))
        secure = where.url.startswith("https:")  # loading certificates takes a while
        try:
            self._http = httpx.Client(
                base_url=where.url,
                headers=where.headers,
                timeout=limits,
                verify=httpx.create_ssl_context() if secure else False,
                proxy=self.proxy,
                trust_env=False,
            )
        except (httpx.InvalidURL, ValueError, ImportError) as error:
            wrong = f"the proxy {without_password(self.proxy)}" if self.proxy else where.url
            raise CommandError(f"{wrong}: {error}", ExitCode.USAGE) from error

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def get(self, path: str, **query: Any) -> Any:
        """The JSON of a GET; parameters that are None are left out."""
        params = {name: value for name, value in query.items() if value is not None}
        return _json(self.send("GET", path, params=params))

    def list_jobs(self, words: str | None, limit: int, error: str | None = None) -> dict[str, Any]:
        """One list of at most `limit` jobs that match a filter, over as many pages as it takes.

        `error`: only those that have ended with this error code.
        """
        jobs: list[Any] = []
        cursor, more = None, True
        while more and len(jobs) < limit:
            size = min(_PAGE, limit - len(jobs))
            page = self.get("/jobs", filter=words, error=error, limit=size, cursor=cursor)
            jobs += page["data"]
            cursor, more = page["next_cursor"], page["has_more"]
        return {"object": "list", "data": jobs, "has_more": more, "next_cursor": cursor}

    def of_job(self, job_id: str, part: str = "") -> Any:
        """A job or a part of it (`/why`, `/timeline`); an operator finds every tenant's."""
        try:
            return self.get(f"/jobs/{quote(job_id)}{part}")
        except CommandError as error:
            if error.code is not ExitCode.NOT_FOUND:
                raise
            with contextlib.suppress(CommandError):
                return self.get(f"/admin/jobs/{quote(job_id)}{part}")
            raise

    def act_on_job(self, action: str, job_id: str, body: Any = None) -> Any:
        """Cancel or retry a job; an operator every tenant's, then the answer is a bulk action's."""
        try:
            return self.post(f"/jobs/{quote(job_id)}/{action}", body)
        except CommandError as error:
            is_id = job_id.replace("_", "").isalnum()  # else the filter would match other jobs
            if error.code is not ExitCode.NOT_FOUND or body is not None or not is_id:
                raise
            request = {"filter": f"tenant:* id:{job_id}", "dry_run": False}
            with contextlib.suppress(CommandError):
                done = self.post(f"/admin/jobs/{action}", request)
                if done["matched"]:
                    return done
            raise

    def post(
        self,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
    ) -> Any:
        """The JSON of a POST, with a JSON body unless it is None; `wait_s`: as for `send`."""
        return _json(self.send("POST", path, body=body, headers=headers, wait_s=wait_s))

    def send(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
        any_status: bool = False,
    ) -> httpx.Response:
        """The whole answer, with `any_status` also one that is no success.

        `wait_s`: how long the gateway itself may wait before it answers.
        """
        limits = httpx.Timeout(self.timeout_s + wait_s, connect=min(self.timeout_s, _CONNECT_S))
        params = params or None  # empty ones would remove a query in the path
        try:
            answer = self._http.request(
                method, path, json=body, params=params, headers=headers, timeout=limits
            )
        except httpx.HTTPError as error:
            raise self._lost(error) from error
        self.reached = True
        if not any_status:
            raise_for(answer)
        return answer

    @contextlib.contextmanager
    def exchange(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **body: Any
    ) -> Iterator[httpx.Response]:
        """An answer that is read part by part. `body`: httpx' `json`, or parts as `content`."""
        limits = httpx.Timeout(_SILENCE_S, connect=min(self.timeout_s, _CONNECT_S))
        try:
            with self._http.stream(method, path, headers=headers, timeout=limits, **body) as answer:
                self.reached = True
                raise_for(answer)
                yield answer
        except httpx.HTTPError as error:
            raise self._lost(error) from error

    @contextlib.contextmanager
    def stream(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[tuple[httpx.Response, Iterator[ServerEvent]]]:
        """An answer of server-sent events, and its events as they come."""
        with self.exchange(method, path, headers=headers, json=body) as answer:
            yield answer, _events(answer)

    def follow(self, path: str, after: str = "") -> Iterator[ServerEvent]:
        """The events of a path up to its end, over as many connections as it takes."""
        patience = Patience(self)
        while True:
            headers = {"last-event-id": after} if after else {}
            try:
                with self.stream("GET", path, headers=headers) as (_, events):
                    for event in events:
                        patience.end()
                        after = event.id or after
                        yield event
                return
            except CommandError as error:
                patience.wait(error)

    def resuming(self) -> httpx.Client:
        """A client for `/v1` calls that continues a stream after the loss of its connection."""
        return httpx.Client(
            base_url=self.url,
            headers=self.where.headers,
            transport=ResumingTransport(
                [self.url],
                transport=httpx.HTTPTransport(
                    limits=LIMITS, socket_options=SOCKET_OPTIONS, proxy=self.proxy
                ),
            ),
            timeout=httpx.Timeout(_SILENCE_S, connect=_CONNECT_S),
        )

    def _lost(self, error: httpx.HTTPError) -> CommandError:
        if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
            return CommandError(
                f"{self.url} has not answered within {self.timeout_s:g} s (--timeout)",
                ExitCode.TIMED_OUT,
            )
        why = str(error) or type(error).__name__
        return CommandError(
            f"no gateway answers at {self.url}: {why}; start one with `flotilla up`, or name "
            "another with --url",
            ExitCode.UNREACHABLE,
        )


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError as error:
        raise CommandError(f"{answer.url} has answered with something else than JSON") from error


def raise_for(answer: httpx.Response) -> None:
    """Raise CommandError if the answer is no success."""
    if not answer.is_success:
        answer.read()
        raise _failure(answer)


def _failure(answer: httpx.Response) -> CommandError:
    """The error of the gateway, in OpenAI's shape, or whatever a proxy has answered."""
    code = of_status(answer.status_code)
    try:
        error = answer.json()["error"]
        message, name = str(error["message"]), error.get("code")
    except (ValueError, LookupError, TypeError, AttributeError):
        message = f"{answer.url} has answered with status {answer.status_code}"
        return CommandError(message, code, retry_after_s=_retry_after_s(answer))
    if name == "unknown_route":
        message = f"this gateway has no {answer.url.path}: it is of an older release"
        code = ExitCode.FAILED
    return CommandError(message, code, answer.content, answer.status_code, _retry_after_s(answer))


def _retry_after_s(answer: httpx.Response) -> float | None:
    """When a gateway that does not serve now may be asked again; None if it does not say so."""
    if answer.status_code not in (429, 503):
        return None
    try:
        return float(answer.headers["retry-after"])
    except (KeyError, ValueError):
        return None


def _events(answer: httpx.Response) -> Iterator[ServerEvent]:
    splitter = EventSplitter()
    for data in answer.iter_raw():
        for block in splitter.feed(data):
            yield parse_event(block)


def parse_event(block: bytes) -> ServerEvent:
    """One block of a stream of events."""
    if is_comment(block):
        return ServerEvent("", b"", comment=block.decode(errors="replace").strip(": \r\n"))
    name, event_id = field(block, b"event"), field(block, b"id")
    return ServerEvent(
        name.decode(errors="replace"), field(block, b"data"), event_id.decode(errors="replace")
    )
