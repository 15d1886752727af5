"""`flotilla batch` and `flotilla files` against a gateway in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.batch.batch_progress import Rates
from gateway.cli.batch.run_state import opened
from gateway.cli.exit_codes import CommandError
from gateway.cli.gateway_client import GatewayClient
from tests.unit.gateway.cli.batch_gateway import BatchGateway
from tests.unit.gateway.cli.conftest import Flotilla
from tests.unit.gateway.cli.stub import StubGateway

RUN = ("batch", "run", "in.jsonl", "-o", "out.jsonl")


@pytest.fixture
def gateway(
    flotilla: Flotilla, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> Iterator[BatchGateway]:
    """The gateway, and an input of ten bodies."""
    monkeypatch.setattr("gateway.cli.gateway_client.RETRY_S", 0.01)
    monkeypatch.setattr("gateway.cli.batch.batch_progress._POLL_S", 0.01)
    lines = "".join(json.dumps({"prompt": f"number {n}"}) + "\n" for n in range(1, 11))
    (folder / "in.jsonl").write_text(lines)
    gateway = BatchGateway()
    monkeypatch.setenv("FLOTILLA_URL", gateway.url)
    yield gateway
    gateway.close()


def ids(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in path.read_text().splitlines()]


def test_a_run_from_end_to_end(flotilla: Flotilla, gateway: BatchGateway, folder: Path) -> None:
    gateway.polls = 3
    result = flotilla(*RUN, "--window", "2h")
    assert result.exit_code == 0, result.stderr
    assert "batch_1 completed: 10 lines answered, 0 failed" in result.stdout
    assert "in_progress: 10 of 10" in result.stderr
    assert sorted(ids(folder / "out.jsonl"), key=int) == [str(n) for n in range(1, 11)]
    assert not (folder / "out.errors.jsonl").exists()
    (batch,) = gateway.batches
    assert batch["completion_window"] == "2h"
    assert batch["endpoint"] == "/v1/chat/completions"
    first, *_ = gateway.files[batch["input_file_id"]].splitlines()
    assert json.loads(first)["body"] == {"prompt": "number 1"}
    before = len(gateway.requests)
    assert flotilla(*RUN).exit_code == 0, "the same command again"
    assert len(gateway.requests) == before


def test_failed_lines_and_their_retry(
    flotilla: Flotilla, gateway: BatchGateway, folder: Path
) -> None:
    gateway.fails = lambda custom_id: int(custom_id) % 3 == 0
    assert flotilla(*RUN).exit_code == 7
    assert set(ids(folder / "out.jsonl")) == {"1", "2", "4", "5", "7", "8", "10"}
    assert set(ids(folder / "out.errors.jsonl")) == {"3", "6", "9"}
    assert flotilla(*RUN).exit_code == 7, "it has ended"
    gateway.fails = lambda custom_id: custom_id == "6"
    assert flotilla(*RUN, "--retry-failed").exit_code == 7
    assert sorted(map(int, ids(folder / "out.jsonl"))) == [1, 2, 3, 4, 5, 7, 8, 9, 10]
    assert ids(folder / "out.errors.jsonl") == ["6"]
    gateway.fails = lambda custom_id: False
    assert flotilla(*RUN, "--retry-failed").exit_code == 0
    assert sorted(map(int, ids(folder / "out.jsonl"))) == list(range(1, 11))
    assert not (folder / "out.errors.jsonl").exists()
    assert [each["request_counts"]["total"] for each in gateway.batches] == [10, 3, 1]
    assert flotilla(*RUN, "--retry-failed").exit_code == 0, "nothing has failed"
    assert len(gateway.batches) == 3


def test_what_is_cut_off_goes_on(
    flotilla: Flotilla, gateway: BatchGateway, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.cuts = {
        "POST /v1/files": 2,
        "GET /v1/batches/ID": 1,
        "GET /v1/files/ID/content": 2,
    }
    assert flotilla(*RUN).exit_code == 0
    assert len(ids(folder / "out.jsonl")) == 10
    assert set(gateway.cuts.values()) == {0}


@pytest.mark.parametrize("at", ["files", "batches", "batch_1", "content"])
def test_the_same_command_goes_on_after_an_interruption(
    flotilla: Flotilla,
    gateway: BatchGateway,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
) -> None:
    def dying(call: Any) -> Any:
        def run(self: GatewayClient, method: str, path: str, **options: Any) -> Any:
            if path.endswith(at) and (method == "POST" or at in ("batch_1", "content")):
                calls.append(path)
                if len(calls) == 1:
                    raise KeyboardInterrupt
            return call(self, method, path, **options)

        return run

    calls: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(GatewayClient, "send", dying(GatewayClient.send))
        patch.setattr(GatewayClient, "exchange", dying(GatewayClient.exchange))
        result = flotilla(*RUN)
    assert result.exit_code == 130, result.stderr
    assert "The same command" in result.stderr or "the same command" in result.stderr
    n_uploads = gateway.requests.count("POST /v1/files")
    assert flotilla(*RUN).exit_code == 0
    assert sorted(map(int, ids(folder / "out.jsonl"))) == list(range(1, 11))
    assert len(gateway.batches) == 1
    if at != "files":
        assert gateway.requests.count("POST /v1/files") == n_uploads, "it is not sent twice"


def test_another_runs_state_is_refused(
    flotilla: Flotilla, gateway: BatchGateway, folder: Path
) -> None:
    (folder / "out.jsonl.batch.json").write_text("{}")
    assert flotilla(*RUN).exit_code == 2, "no state"
    (folder / "out.jsonl.batch.json").unlink()
    with opened(folder / "out.jsonl", {"x": 1}) as state:
        state.save()
        with (
            pytest.raises(CommandError, match="another command"),
            opened(folder / "out.jsonl", {"x": 1}),
        ):
            pass
    assert "another run" in flotilla(*RUN).stderr
    (folder / "out.jsonl.batch.json").unlink()
    (folder / "out.jsonl").write_text("precious")
    assert flotilla(*RUN).exit_code == 2
    assert (folder / "out.jsonl").read_text() == "precious"


def test_check_only_needs_no_gateway(flotilla: Flotilla, stub: StubGateway, folder: Path) -> None:
    (folder / "in.jsonl").write_text('{"prompt": "x"}\n{"prompt": "y"}\n')
    shown = flotilla("batch", "run", "in.jsonl", "--check-only").stdout
    assert shown.startswith("2 lines for /v1/chat/completions, ")
    (folder / "in.jsonl").write_text('{"prompt": "x"}\n{\n')
    result = flotilla("batch", "run", "in.jsonl", "--check-only")
    assert result.exit_code == 2
    assert "line 2: invalid_json_line" in result.stderr
    assert flotilla("batch", "run", "none.jsonl", "--check-only").exit_code == 2
    assert stub.requests == []


def test_the_other_commands(flotilla: Flotilla, gateway: BatchGateway, folder: Path) -> None:
    gateway.fails = lambda custom_id: custom_id == "b"
    lines = [{"custom_id": each, "method": "POST", "url": "/x", "body": {}} for each in "ab"]
    (folder / "full.jsonl").write_text(
        "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in lines)
    )
    file = flotilla("files", "put", "full.jsonl").stdout.strip()
    assert gateway.files[file] == (folder / "full.jsonl").read_bytes()
    assert file in flotilla("files", "ls").stdout
    made = flotilla("batch", "create", file, "--endpoint", "/x", "--meta", "team=search")
    assert made.stdout == "batch_1\n"
    assert gateway.batches[0]["metadata"] == {"team": "search"}
    row = flotilla("batch", "ls").stdout.splitlines()[1].split()
    assert row[:3] == ["batch_1", "completed", "/x"]
    assert row[-3:] == ["2", "1", "1"]
    assert "1 failed" in flotilla("batch", "show", "batch_1").stdout
    assert flotilla("batch", "follow", "batch_1").exit_code == 7
    assert flotilla("batch", "fetch", "batch_1", "-o", "out.jsonl").exit_code == 7
    assert (ids(folder / "out.jsonl"), ids(folder / "out.errors.jsonl")) == (["a"], ["b"])
    assert flotilla("batch", "fetch", "batch_1", "-o", "out.jsonl").exit_code == 2
    flotilla("files", "get", file, "-o", "copy.jsonl")
    assert (folder / "copy.jsonl").read_bytes() == (folder / "full.jsonl").read_bytes()
    assert flotilla("files", "rm", file).stdout == f"{file}: deleted\n"
    assert flotilla("files", "rm", file).exit_code == 3


def test_rates_are_those_of_the_last_ten_seconds() -> None:
    def read(at: float, lines: int, tokens: int) -> dict[str, Any]:
        counts = {"total": 1000, "completed": lines, "failed": 0}
        usage = {"output_tokens": tokens}
        shown = rates.add({"id": "b", "status": "x", "request_counts": counts, "usage": usage}, at)
        return {name: shown[name] for name in ("lines_per_s", "output_tokens_per_s", "eta_s")}

    rates = Rates()
    assert set(read(0.0, 0, 0).values()) == {None}
    assert read(1.0, 0, 0) == {"lines_per_s": 0.0, "output_tokens_per_s": 0.0, "eta_s": None}
    for second in range(2, 40):
        told = read(float(second), (second // 5) * 50, second * 7)
    assert told == {"lines_per_s": 10.0, "output_tokens_per_s": 7.0, "eta_s": 65.0}
