"""vLLM's arguments of a pool, the wall for URLs, and the size of a CPU's KV cache."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest

from shared.api import field_policy
from shared.platform import tracing
from shared.platform.settings import SettingsError
from tests.harness.servers import free_port
from tests.harness.settings import Settings
from worker.engines.vllm import args as vllm_args
from worker.engines.vllm.args import (
    LARGEST_BYTES,
    MEDIA_URLS,
    NO_DOMAIN,
    PROCESS_BYTES,
    kv_cache_bytes,
    weights_bytes,
    with_gpus,
)

pytestmark = pytest.mark.vllm  # shares the import
GIB = 1 << 30


def test_torch_compiles_nothing_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    for name in ("TORCH_COMPILE_DISABLE", *vllm_args.DEFAULTS, *vllm_args.DEMO_DEFAULTS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    vllm_args.set_defaults(Settings().described.own)
    assert os.environ["TORCH_COMPILE_DISABLE"] == "1"


def arguments(engine_args: str = "", **settings: Any) -> Any:
    """As vLLM's parser reads them."""
    return vllm_args.parse(Settings(engine_args=engine_args, **settings).described.own, "", 1)


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


@pytest.mark.parametrize(
    ("engine_args", "part"),
    [
        ("--data-parallel-size 2", "start a worker for each"),
        ("--nnodes 2 --node-rank 1", "vllm serve --headless --node-rank 1"),
    ],
)
def test_other_engines_of_several_are_refused(engine_args: str, part: str) -> None:
    with pytest.raises(SettingsError, match=part):
        arguments(engine_args)


@pytest.mark.parametrize(
    ("engine_args", "allowed", "domains"),
    [
        ("--seed 1", (), [NO_DOMAIN]),
        ("--seed 1", (MEDIA_URLS,), None),
        ("--allowed-media-domains a.org", (), ["a.org"]),
        ("--allowed_media_domains=a.org", (), ["a.org"]),
    ],
)
def test_domains(engine_args: str, allowed: tuple[str, ...], domains: Any) -> None:
    assert arguments(engine_args, allow_fields=allowed).allowed_media_domains == domains


@pytest.mark.parametrize("allowed", [(), (MEDIA_URLS,), ("*",)])
def test_vllm_fetches_a_url_only_if_that_is_allowed(allowed: tuple[str, ...]) -> None:
    from vllm.multimodal.media import MediaConnector

    assert MEDIA_URLS == field_policy.MEDIA_URLS
    domains = arguments(allow_fields=allowed).allowed_media_domains
    connector = MediaConnector(allowed_media_domains=domains)
    url = f"http://127.0.0.1:{free_port()}/"
    with pytest.raises(Exception, match=r"(?i)connect" if allowed else "allowed domains"):
        connector.fetch_image(url)


def test_vllm_gets_the_endpoint_of_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tracing.ENGINE_VARIABLES:
        monkeypatch.setenv(name, "as it was")
    option, url = "--otlp-traces-endpoint", "http://127.0.0.1:4318/v1/traces"
    for given, endpoint, expected in (
        ("", url, [url]),
        (f"{option} http://other:4317", url, ["http://other:4317"]),
        ("", "", []),
    ):
        argv = vllm_args.arguments(Settings(engine_args=given).described.own, endpoint, 1)
        assert [value for name, value in itertools.pairwise(argv) if name == option] == (expected)


@pytest.mark.parametrize(
    ("argv", "gpus", "expected"),
    [
        (["--tensor-parallel-size", "auto"], 4, ["--tensor-parallel-size", "4"]),
        (["--seed", "1", "-tp", "auto", "-x"], 2, ["--seed", "1", "-tp", "2", "-x"]),
        (["--tensor-parallel-size=auto"], 8, ["--tensor-parallel-size=8"]),
        (["-tp", "auto", "-pp", "2"], 8, ["-tp", "4", "-pp", "2"]),
        (["-tp", "auto", "-pp=4"], 2, ["-tp", "1", "-pp=4"]),
        (["-tp", "auto"], 0, ["-tp", "1"]),
    ],
)
def test_auto_is_the_number_of_gpus(argv: list[str], gpus: int, expected: list[str]) -> None:
    assert with_gpus(argv, gpus) == expected


@pytest.mark.parametrize(
    "argv", [[], ["-tp", "2"], ["--dtype", "auto"], ["--tensor-parallel-size"], ["--x=auto"]]
)
def test_everything_else_stays(argv: list[str]) -> None:
    assert with_gpus(argv, 4) == argv


@pytest.mark.parametrize(
    ("memory", "weights", "one_request", "shared", "size"),
    [
        (8 * GIB, 2 * GIB, 0, False, (6 * GIB - PROCESS_BYTES) // 2),
        (8 * GIB, 2 * GIB, 0, True, (6 * GIB - PROCESS_BYTES) // 4),
        (64 * GIB, 2 * GIB, 0, False, LARGEST_BYTES),
        (64 * GIB, 2 * GIB, 5 * GIB, True, 5 * GIB),  # one request always fits, if it can
        (8 * GIB, 2 * GIB, 9 * GIB, False, 6 * GIB - PROCESS_BYTES),  # vLLM says what is missing
    ],
)
def test_the_cache_gets_a_part_of_what_is_left(
    memory: int, weights: int, one_request: int, shared: bool, size: int
) -> None:
    found = kv_cache_bytes(memory=memory, weights=weights, one_request=one_request, shared=shared)
    assert found == size


@pytest.mark.parametrize("shared", [True, False])
def test_weights_that_do_not_fit_leave_nothing(shared: bool) -> None:
    sizes = {"memory": 4 * GIB, "weights": 3 * GIB, "one_request": 1}
    assert kv_cache_bytes(**sizes, shared=shared) <= 0


def test_floats_take_the_models_size_and_packed_numbers_their_own() -> None:
    tensors = [
        {"format": "pt"},  # a file's `__metadata__`
        {"dtype": "F32", "shape": [10, 4], "data_offsets": [0, 160]},
        {"dtype": "BF16", "shape": [], "data_offsets": [160, 162]},
        {"dtype": "I32", "shape": [3], "data_offsets": [162, 174]},
        {"dtype": "F8_E4M3", "shape": [5], "data_offsets": [174, 179]},
    ]
    assert weights_bytes(tensors, 2) == 80 + 2 + 12 + 5
