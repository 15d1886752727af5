"""The options of `flotilla bench`, with the names of `vllm bench serve` where it has them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.bench.backends import CHAT, PATHS
from gateway.bench.figures import METRICS
from gateway.bench.objectives import Objective, ObjectiveError, milliseconds, parse_slo
from gateway.bench.objectives import parse_goodput as parsed_goodput
from gateway.cli.exit_codes import CommandError, ExitCode

NUM_PROMPTS = 100
CONCURRENCY = 8
OUTPUT_TOKENS = 64


def _load(*names: str, help: str, **more: Any) -> Any:  # noqa: A002 - typer's name
    return typer.Option(*names, help=help, rich_help_panel="Load", **more)


def _request(*names: str, help: str, **more: Any) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, rich_help_panel="Requests", **more)


def _result(*names: str, help: str, **more: Any) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, rich_help_panel="Result", **more)


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The command line. Methods raise CommandError for a value that is not as it must be."""

    rate: Annotated[
        float | None,
        _load(
            "--rate",
            "--request-rate",
            min=0.001,
            help="Requests a second, at random times; inf: all at once.",
        ),
    ] = None
    burstiness: Annotated[
        float,
        _load(min=0.001, help="1: a Poisson process; more: more even times; inf: constant gaps."),
    ] = 1.0
    max_concurrency: Annotated[
        int | None,
        _load(min=1, help=f"The most requests open at once; {CONCURRENCY} without --rate."),
    ] = None
    num_prompts: Annotated[
        int | None,
        _load(min=1, help=f"How many; else by --for or the file, else {NUM_PROMPTS}."),
    ] = None
    seconds: Annotated[
        str | None, _load("--for", metavar="TIME", help="Send for so long: 30s, 2m.")
    ] = None
    model: Annotated[
        str | None, _request("-m", "--model", help="A model; else the server's first.")
    ] = None
    backend: Annotated[
        str, _request(help="openai-chat: chat completions; openai: completions.")
    ] = CHAT
    input_len: Annotated[int, _request(min=1, help="Tokens of each random prompt.")] = 128
    output_len: Annotated[
        int | None,
        _request(min=1, help=f"Tokens of each answer; else the file's, else {OUTPUT_TOKENS}."),
    ] = None
    dataset_path: Annotated[
        Path | None,
        _request(metavar="FILE", help="JSONL with `prompt` and `output_tokens` in each line."),
    ] = None
    ignore_eos: Annotated[bool, _request(help="Whether answers always have all tokens.")] = True
    extra_body: Annotated[
        str, _request(metavar="JSON", help='More fields of the requests: {"temperature": 0}.')
    ] = "{}"
    seed: Annotated[int, _request(help="Of the random prompts and times.")] = 0
    request_timeout: Annotated[
        float, _request(min=0.1, help="The most seconds that one answer may take.")
    ] = 600.0
    goodput: Annotated[
        list[str] | None,
        _result(
            metavar="METRIC:MS",
            help="Count requests that keep ttft:500, tpot:50 or e2el:2s. Can be repeated.",
        ),
    ] = None
    slo: Annotated[
        list[str] | None,
        _result(
            metavar="NAME=VALUE",
            help="Exit with 1 unless ttft_p99=1.5s, output_throughput=500 or failed=0 is kept. "
            "Can be repeated.",
        ),
    ] = None
    percentile_metrics: Annotated[
        str, _result(metavar="LIST", help=f"Which times are shown, of {', '.join(METRICS)}.")
    ] = "ttft,tpot,itl,e2el,queue_wait"
    metric_percentiles: Annotated[
        str, _result(metavar="LIST", help="Which percentiles are shown: 50,90,99.")
    ] = "99"
    compare: Annotated[
        Path | None,
        _result(metavar="FILE", help="A file of --save, or of vLLM's --save-result."),
    ] = None
    save: Annotated[Path | None, _result(metavar="FILE", help="Write the result as JSON.")] = None
    save_detailed: Annotated[
        bool, _result("--save-detailed", help="Also write the times of each request.")
    ] = False

    def check(self) -> None:
        """Raise CommandError if any value is wrong, before anything is sent."""
        if self.backend not in PATHS:
            raise _wrong(f"--backend is one of {', '.join(PATHS)}")
        self.duration_s()
        self.metrics()
        self.percentiles()
        self.good()
        self.body()

    def request_rate(self) -> float:
        """Requests a second; infinite without --rate."""
        return math.inf if self.rate is None else self.rate

    def concurrency(self) -> int | None:
        """The most requests open at once; None: without limit."""
        if self.max_concurrency is None and self.rate is None:
            return CONCURRENCY
        return self.max_concurrency

    def duration_s(self) -> float | None:
        """The time of --for."""
        if self.seconds is None:
            return None
        try:
            found = milliseconds(self.seconds if self.seconds[-1:].isalpha() else "") / 1000
        except ObjectiveError:
            raise _wrong(f"--for {self.seconds!r}: write 30s or 2m") from None
        return found

    def metrics(self) -> list[str]:
        """The shown times."""
        names = self.percentile_metrics.split(",")
        if not set(names) <= set(METRICS):
            raise _wrong(f"--percentile-metrics: of {', '.join(METRICS)}")
        return names

    def percentiles(self) -> list[float]:
        """The shown percentiles and those of --slo."""
        try:
            shown = [float(part) for part in self.metric_percentiles.split(",")]
        except ValueError:
            shown = [math.nan]
        if not all(0 <= each <= 100 for each in shown):
            raise _wrong("--metric-percentiles: numbers from 0 to 100, such as 50,90,99")
        wanted = [each.percentile for each in self.objectives() if each.percentile is not None]
        return sorted({*shown, *wanted})

    def objectives(self) -> list[Objective]:
        """The limits of --slo."""
        try:
            return [parse_slo(text) for text in self.slo or []]
        except ObjectiveError as error:
            raise _wrong(f"--slo {error}") from error

    def good(self) -> dict[str, float]:
        """The limits of --goodput, in ms."""
        try:
            return parsed_goodput(self.goodput or [])
        except ObjectiveError as error:
            raise _wrong(f"--goodput {error}") from error

    def body(self) -> dict[str, Any]:
        """The fields of --extra-body."""
        try:
            found = json.loads(self.extra_body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise _wrong("--extra-body must be a JSON object")
        return found

    def before(self) -> dict[str, Any] | None:
        """The result of --compare."""
        if self.compare is None:
            return None
        try:
            found = json.loads(self.compare.read_text())
        except (OSError, ValueError) as error:
            raise _wrong(f"--compare {self.compare}: {error}") from error
        if not isinstance(found, dict) or "output_throughput" not in found:
            raise _wrong(f"--compare {self.compare}: this is no result of a benchmark")
        return found


def _wrong(message: str) -> CommandError:
    return CommandError(message, ExitCode.USAGE)
