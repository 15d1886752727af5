"""Arguments of vLLM's own server, and the wall for URLs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from shared.api import field_policy
from shared.platform import tracing
from shared.platform.settings import SettingsError
from tests.harness.settings import Settings
from worker.engines.vllm import arguments as vllm_arguments
from worker.engines.vllm import release
from worker.engines.vllm.server_args import (
    IGNORED,
    MEDIA_URLS,
    NO_DOMAIN,
    REFUSED,
    with_media_domains,
)

pytestmark = pytest.mark.vllm  # shares the import


def test_torch_compiles_nothing_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    for name in ("TORCH_COMPILE_DISABLE", *vllm_arguments.DEFAULTS, *vllm_arguments.DEMO_DEFAULTS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    vllm_arguments.set_defaults(Settings().described.own)
    assert os.environ["TORCH_COMPILE_DISABLE"] == "1"


def arguments(engine_args: str = "", **settings: Any) -> Any:
    """As vLLM's parser reads them."""
    values = Settings(engine_args=engine_args, **settings)
    return vllm_arguments.parse(release.load(), values.described.own, "")


@pytest.mark.parametrize(
    ("engine_args", "text"),
    [
        ("--api-key secret", "--api-key has no effect in a worker.* FLOTILLA_API_KEYS"),
        ("--ssl-keyfile k --ssl-certfile c", "--ssl-keyfile .*; --ssl-certfile .*proxy with TLS"),
    ],
)
def test_what_would_protect_vllms_own_server_is_refused(engine_args: str, text: str) -> None:
    with pytest.raises(SettingsError, match=text) as error:
        arguments(engine_args)
    assert "secret" not in str(error.value)


def test_a_key_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    with pytest.raises(SettingsError, match=r"VLLM_API_KEY.* FLOTILLA_API_KEYS"):
        arguments()


def test_what_has_no_effect_is_named(caplog: pytest.LogCaptureFixture) -> None:
    arguments("--root-path /llm --port 9000 --uvicorn-log-level debug --max-num-seqs 3")
    named = [record.getMessage().split()[0] for record in caplog.records]
    assert [name for name in named if name.startswith("--")] == [
        "--port",
        "--root-path",
        "--uvicorn-log-level",
    ]


def test_vllm_has_these_arguments() -> None:
    args = arguments()
    own = {"api_server_count", "headless"}  # of `vllm serve`, in some releases
    missing = [name for name in (*REFUSED, *IGNORED) if not hasattr(args, name)]
    assert set(missing) <= own


@pytest.mark.parametrize(
    ("argv", "allowed", "expected"),
    [
        (["--seed", "1"], False, ["--seed", "1", "--allowed-media-domains", NO_DOMAIN]),
        (["--seed", "1"], True, ["--seed", "1"]),
        (["--allowed-media-domains", "a.org"], False, ["--allowed-media-domains", "a.org"]),
        (["--allowed_media_domains=a.org"], False, ["--allowed_media_domains=a.org"]),
    ],
)
def test_domains(argv: list[str], allowed: bool, expected: list[str]) -> None:
    assert with_media_domains(argv, urls_allowed=allowed) == expected


class Requests(BaseHTTPRequestHandler):
    """Remembers the paths that it was asked for."""

    seen: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.seen.append(self.path)
        self.send_error(404)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Requests) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("allowed", [(), (MEDIA_URLS,), ("*",)])
def test_vllm_fetches_a_url_only_if_that_is_allowed(url: str, allowed: tuple[str, ...]) -> None:
    from vllm.multimodal.media import MediaConnector

    assert MEDIA_URLS == field_policy.MEDIA_URLS
    domains = arguments(allow_fields=allowed).allowed_media_domains
    connector = MediaConnector(allowed_media_domains=domains)
    path = "/" + "".join(allowed).replace("*", "all")
    with pytest.raises(Exception, match="404" if allowed else "allowed domains"):
        connector.fetch_image(url + path)
    assert (path in Requests.seen) is bool(allowed)


def test_vllm_gets_the_endpoint_of_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tracing.ENGINE_VARIABLES:
        monkeypatch.setenv(name, "as it was")
    option, url = "--otlp-traces-endpoint", "http://127.0.0.1:4318/v1/traces"
    assert vllm_arguments.tracing_args(url, "") == [option, url]
    assert vllm_arguments.tracing_args(url, f"{option} http://other:4317") == []
    assert vllm_arguments.tracing_args("", "") == []
