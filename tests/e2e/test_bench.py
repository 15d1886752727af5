"""`flotilla bench` on a fleet with the simulated engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from gateway.cli.exit_codes import ExitCode
from typer.testing import CliRunner, Result

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


def test_objectives_decide_the_exit_code(url: str) -> None:
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
    ("arguments", "code", "message"),
    [
        (("-m", "unknown"), ExitCode.NOT_FOUND, "unknown"),
        (("--backend", "other"), ExitCode.USAGE, "openai-chat, openai"),
        (("--for", "30"), ExitCode.USAGE, "30s"),
        (("--slo", "ttft=1"), ExitCode.USAGE, "ttft_p99"),
        (("--goodput", "itl:1"), ExitCode.USAGE, "METRIC:MS"),
        (("--extra-body", "[]"), ExitCode.USAGE, "JSON object"),
        (("--compare", sys.executable), ExitCode.USAGE, "--compare"),
        (("--dataset-path", "missing.jsonl"), ExitCode.USAGE, "missing.jsonl"),
    ],
)
def test_what_is_wrong_is_explained(
    url: str, arguments: tuple[str, ...], code: ExitCode, message: str
) -> None:
    result = run(url, *arguments)
    assert result.exit_code == code, result.output
    assert message in result.stderr


def test_without_a_server_it_is_unreachable() -> None:
    assert run(f"http://127.0.0.1:{free_port()}").exit_code == ExitCode.UNREACHABLE
