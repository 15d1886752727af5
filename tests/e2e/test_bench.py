"""`flotilla bench` on a fleet with the simulated engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.exit_codes import ExitCode
from gateway.cli.main import app
from tests.e2e.processes import Stack
from tests.redis_server import free_port

LOAD = ("--num-prompts", "12", "--max-concurrency", "4", "--output-len", "8", "--input-len", "64")


def run(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", "--url", url, *arguments])


@pytest.fixture
def url(stack: Stack) -> str:
    stack.worker(sim_step_ms=2)
    return stack.gateway().url


def test_it_prints_vllms_table_and_its_result_can_be_compared(url: str, tmp_path: Path) -> None:
    file = tmp_path / "first.json"
    first = run(url, *LOAD, "--save", str(file), "--save-detailed", "--goodput", "ttft:60s")
    assert first.exit_code == ExitCode.OK, first.output
    lines = [line.rpartition("  ") for line in first.stdout.splitlines()]
    table = {label.strip(): value.strip() for label, _, value in lines}
    assert table["Successful requests:"] == "12"
    assert table["Failed requests:"] == "0"
    assert table["Total generated tokens:"] == "96"
    assert float(table["Mean TTFT (ms):"]) > 0
    assert float(table["P99 E2EL (ms):"]) >= float(table["Median E2EL (ms):"])
    assert "simulated engine" in first.stderr
    saved: dict[str, Any] = json.loads(file.read_text())
    assert saved["request_goodput"] == pytest.approx(saved["request_throughput"])
    assert [len(gaps) for gaps in saved["itls"]] == [8] * 12
    assert all(56 <= n <= 72 for n in saved["input_lens"])
    second = run(url, *LOAD, "--backend", "openai", "--compare", str(file))
    assert second.exit_code == ExitCode.OK, second.output
    assert "change" in second.stdout
    assert "not the same load: backend: openai-chat before, openai now" in second.stderr


def test_the_exit_code_has_a_reason(url: str) -> None:
    unknown = run(url, "-m", "unknown")
    assert unknown.exit_code == ExitCode.NOT_FOUND
    assert "unknown" in unknown.stderr
    missing = run(url, "--dataset-path", "missing.jsonl")
    assert missing.exit_code == ExitCode.USAGE
    assert "missing.jsonl" in missing.stderr
    missed = run(url, *LOAD, "--slo", "ttft_p99=60s", "--slo", "output_throughput=1e9")
    assert missed.exit_code == ExitCode.FAILED
    assert "p99_ttft_ms <= 60000" in missed.stdout
    assert "MISSED" in missed.stdout


def test_a_rate_and_a_time_make_the_number_of_requests(url: str) -> None:
    done = run(url, "--rate", "20", "--for", "1s", "--output-len", "4", "--json")
    assert done.exit_code == ExitCode.OK, done.output
    found = json.loads(done.stdout)
    assert (found["completed"], found["request_rate"], found["max_concurrency"]) == (20, 20.0, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backend", "other"), "openai-chat, openai"),
        (("--for", "30"), "30s"),
        (("--slo", "ttft=1"), "METRIC_STATISTIC"),
        (("--goodput", "itl:1"), "METRIC:MS"),
        (("--extra-body", "[]"), "JSON object"),
        (("--compare", sys.executable), "--compare"),
    ],
)
def test_what_is_wrong_is_explained(arguments: tuple[str, ...], message: str) -> None:
    result = run("http://127.0.0.1:9", *arguments)  # nothing is sent
    assert result.exit_code == ExitCode.USAGE, result.output
    assert message in result.stderr


def test_without_a_server_it_is_unreachable() -> None:
    assert run(f"http://127.0.0.1:{free_port()}").exit_code == ExitCode.UNREACHABLE
