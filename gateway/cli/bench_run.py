"""What `flotilla bench` does. Apart from its command line, because aiohttp takes long to load."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice

from gateway.bench import figures, report
from gateway.bench.arrivals import arrival_times
from gateway.bench.call import Target
from gateway.bench.figures import Result
from gateway.bench.load import Load, Planned, Run
from gateway.bench.prompts import Prompt, PromptsError, random_prompts, read_prompts
from gateway.bench.queue_waits import add_queue_waits
from gateway.bench.trial import TrialError, prompt_length
from gateway.cli.bench_options import NUM_PROMPTS, OUTPUT_TOKENS, BenchOptions
from gateway.cli.bench_progress import progress
from gateway.cli.command import Session
from gateway.cli.exit_codes import CommandError, ExitCode, of_status
from gateway.cli.output import note

_SIMULATED = "simulated"
_SHOWN_ERRORS = 5


def send_and_report(session: Session, options: BenchOptions) -> ExitCode:
    """Send the load, print and save the result. Raises CommandError."""
    options.check()
    before = options.before()
    target, engines = _target(session, options)
    prompts, length = _prompts(target, options)
    total = _total(options, length)
    load = Load(
        target,
        _plan(prompts, total, options),
        max_concurrency=options.concurrency(),
        seconds=options.duration_s() if math.isinf(options.request_rate()) else None,
        timeout_s=options.request_timeout,
    )
    with progress(load.run, total, options.duration_s()):
        ended = asyncio.run(load.execute())
    if not ended.interrupted:
        asyncio.run(add_queue_waits(target, ended.outcomes))
    found = _result(target, options, total, ended)
    _save(found, ended, options)
    _print(session, found, options, before, engines)
    return _exit_code(found, ended, options)


def _target(session: Session, options: BenchOptions) -> tuple[Target, list[str]]:
    """Where the requests go, and which engines answer them if the server is a fleet."""
    listed = session.client.get("/v1/models")
    cards = listed.get("data", []) if isinstance(listed, dict) else []
    cards = [card for card in cards if options.model in (None, card.get("id"))]
    if not cards and options.model is None:
        raise CommandError("the server has no model yet; name one with --model")
    model = options.model or cards[0]["id"]
    engines = cards[0].get("flotilla", {}).get("engines", []) if cards else []
    where = session.client.where
    target = Target(
        where.url,
        model,
        options.backend,
        where.headers,
        options.body(),
        ignore_eos=options.ignore_eos,
    )
    return target, engines


def _prompts(target: Target, options: BenchOptions) -> tuple[Iterable[Prompt], int | None]:
    """The prompts, and how many of them a file has. The server is tried first."""
    read = _from_file(options)
    try:
        length = asyncio.run(prompt_length(target, options.request_timeout))
    except TrialError as error:
        code = of_status(error.status) if error.status else ExitCode.UNREACHABLE
        raise CommandError(f"{target.url}: {error}", code) from error
    if read is not None:
        return cycle(read), len(read)
    n_words = length.words(options.input_len)
    return random_prompts(n_words, options.output_len or OUTPUT_TOKENS, options.seed), None


def _from_file(options: BenchOptions) -> list[Prompt] | None:
    if options.dataset_path is None:
        return None
    try:
        return read_prompts(options.dataset_path, options.output_len)
    except (PromptsError, OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--dataset-path: {error}", ExitCode.USAGE) from error


def _total(options: BenchOptions, n_lines: int | None) -> int | None:
    """The number of requests; None: as many as there is time for."""
    if options.num_prompts is not None:
        return options.num_prompts
    duration_s = options.duration_s()
    if duration_s is None:
        return n_lines or NUM_PROMPTS
    if math.isinf(options.request_rate()):
        return None
    return max(1, round(options.request_rate() * duration_s))


def _plan(prompts: Iterable[Prompt], total: int | None, options: BenchOptions) -> Iterator[Planned]:
    if total is None:
        return (Planned(0.0, prompt) for prompt in prompts)
    draw = random.Random(options.seed)
    times = arrival_times(total, options.request_rate(), options.burstiness, draw)
    return iter([*map(Planned, times, islice(prompts, total))])


def _result(target: Target, options: BenchOptions, total: int | None, run: Run) -> Result:
    """The figures behind what was asked for: the keys of vLLM's result files."""
    rate = options.request_rate()
    found = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "backend": target.backend,
        "model_id": target.model,
        "num_prompts": len(run.outcomes) if total is None else total,
        "request_rate": "inf" if math.isinf(rate) else rate,
        "burstiness": "inf" if math.isinf(options.burstiness) else options.burstiness,
        "max_concurrency": options.concurrency(),
    }
    return found | figures.result(
        run.outcomes, run.duration_s, options.good(), options.percentiles()
    )


def _save(found: Result, run: Run, options: BenchOptions) -> None:
    if options.save is None:
        return
    more = figures.details(run.outcomes) if options.save_detailed else {}
    try:
        options.save.write_text(json.dumps(found | more) + "\n")
    except OSError as error:
        raise CommandError(f"--save {options.save}: {error}") from error


def _print(
    session: Session,
    found: Result,
    options: BenchOptions,
    before: Result | None,
    engines: Sequence[str],
) -> None:
    if any(engine.startswith(_SIMULATED) for engine in engines):
        note("simulated engine: these are not the figures of a model")
    if session.as_json:
        print(json.dumps(found, indent=2))
        return
    print(report.table(found, options.metrics(), before))
    for difference in report.differences(found, before) if before is not None else []:
        note(f"not the same load: {difference}")
    for objective in options.objectives():
        print(objective.line(found))


def _exit_code(found: Result, run: Run, options: BenchOptions) -> ExitCode:
    """The exit code; the reasons for failed requests on stderr."""
    errors = [outcome.error for outcome in run.outcomes if outcome.error]
    for error in list(dict.fromkeys(errors))[:_SHOWN_ERRORS]:
        note(f"{errors.count(error)} failed: {error}")
    if run.interrupted:
        note("Interrupted. The requests that were open are closed and not counted.")
        return ExitCode.INTERRUPTED
    if not found["completed"] or not all(each.met(found) for each in options.objectives()):
        return ExitCode.FAILED
    return ExitCode.PARTIAL if errors else ExitCode.OK
