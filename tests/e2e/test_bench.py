"""`flotilla bench` on a fleet with the simulated engine: vLLM's own benchmark, and the waits."""

from __future__ import annotations

import importlib.util
import re

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.bench import arguments, summary
from gateway.cli.exit_codes import ExitCode
from gateway.cli.main import app
from tests.harness.fleet import Stack
from tests.harness.servers import free_port
from worker.demo import MODEL_DIR

LOAD = ("--num-prompts", "12", "--input-len", "32", "--output-len", "8", "--ignore-eos")


def run(url: str, *options: str) -> Result:
    return CliRunner().invoke(app, ["bench", "--url", url, *options])


@pytest.mark.vllm
def test_vllms_benchmark_measures_a_fleet(
    stack: Stack, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    stack.worker(sim_step_ms=2)
    url = stack.gateway().url
    done = run(url, "--tokenizer", str(MODEL_DIR), *LOAD)
    table = capfd.readouterr().out
    assert done.exit_code == ExitCode.OK, (done.output, table)
    assert re.search(r"Successful requests:\s+12\b", table), table
    assert re.search(r"Total generated tokens:\s+96\b", table), table
    assert "simulated engine" in done.stderr
    assert re.search(r"whose wait in the queue was read:\s+12\b", done.stdout), done.stdout
    assert re.search(r"P99 wait in the queue \(ms\):\s+[0-9.]+", done.stdout), done.stdout
    refused = run(url, "--tokenizer", str(MODEL_DIR), "--no-such-option")
    assert refused.exit_code == ExitCode.FAILED
    assert "exit status 2" in refused.stderr


def test_an_unknown_model_is_not_found(stack: Stack) -> None:
    stack.worker()
    url = stack.gateway().url
    for option in (("--model", "unknown"), ("--model=unknown",)):
        unknown = run(url, *option)
        assert unknown.exit_code == ExitCode.NOT_FOUND
        assert "'unknown'" in unknown.stderr


def test_without_a_gateway_or_without_vllm_it_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert run(url).exit_code == ExitCode.UNREACHABLE
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    missing = run(url)
    assert missing.exit_code == ExitCode.FAILED
    assert "vLLM is not installed here" in missing.stderr


def test_the_fleets_options_come_first_so_that_the_users_replace_them() -> None:
    found = arguments("http://host:1", {"id": "m", "root": "/models/m"})
    assert found[:4] == ["--base-url", "http://host:1", "--model", "m"]
    assert found[-2:] == ["--tokenizer", "/models/m"]
    assert "--tokenizer" not in arguments("http://host:1", {"id": "m", "root": None})


def test_waits_are_summed_up_in_milliseconds() -> None:
    assert summary([]) == [("Jobs whose wait in the queue was read:", "0")]
    assert [value for _, value in summary([0.25])] == ["1", "250.00", "250.00", "250.00"]
    waits = [each / 1000 for each in range(1, 102)]
    assert [value for _, value in summary(waits)] == ["101", "51.00", "100.00", "101.00"]
