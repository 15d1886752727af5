"""`flotilla bench`: `vllm bench serve` against a fleet, and the waits in its queue."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Annotated, Any

import typer

from gateway.cli.command import Session, gateway_command
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.output import note, show, table
from shared.platform.settings import to_environment

# As a process of its own: vLLM takes ten seconds to load, and the gateway's image does not have it.
_VLLM = "worker.engines.vllm.cli"
_CHAT = ("--backend", "openai-chat", "--endpoint", "/v1/chat/completions")
_MOST_WAITS = 1000
"""Jobs whose wait is read, the newest first."""
_CLOCK_S = 1.0
"""Added to the age of the jobs that are read: they get older until the gateway reads them."""

app = typer.Typer()


@gateway_command(
    app,
    "bench",
    "flotilla bench --request-rate 8 --num-prompts 240 --ignore-eos",
    "flotilla bench --max-concurrency 32 --num-prompts 500 --goodput ttft:500 --save-result",
    passes_on=True,
)
def bench(
    session: Session,
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OPTIONS OF vllm bench serve]...", help="Passed on as they are."),
    ] = None,
) -> ExitCode:
    """Run `vllm bench serve` against a fleet; print its table and the waits in the fleet's queue.

    Address, key, model and tokenizer are the fleet's unless options replace them. `vllm bench serve
    --help=all` lists the options. Needs vLLM on this machine.
    """
    given = options or []
    if importlib.util.find_spec("vllm") is None:
        raise CommandError(
            "`flotilla bench` runs `vllm bench serve`, and vLLM is not installed here; run it from "
            "a machine with a worker, or measure with any other client of OpenAI's API"
        )
    card = _model(session, _value(given, "--model"))
    command = [sys.executable, "-m", _VLLM, "bench", "serve", *arguments(session.client.url, card)]
    key = session.client.where.headers.get("authorization", "").removeprefix("Bearer ")
    environment = to_environment("") | ({"OPENAI_API_KEY": key} if key else {})
    began = time.monotonic()
    ended = subprocess.run([*command, *given], env=environment, check=False)  # noqa: S603
    if ended.returncode:
        raise CommandError(f"`vllm bench serve` ended with exit status {ended.returncode}")
    _show_waits(session, card["id"], time.monotonic() - began)
    return ExitCode.OK


def arguments(url: str, card: dict[str, Any]) -> list[str]:
    """The options that a fleet's address and its model's card decide; later ones replace them."""
    found = ["--base-url", url, "--model", card["id"], *_CHAT]
    return [*found, "--tokenizer", card["root"]] if card.get("root") else found


def _value(options: Sequence[str], name: str) -> str | None:
    """The value of an option, written as `--name value` or `--name=value`; None without it."""
    for place, option in enumerate(options):
        if option == name:
            return next(iter(options[place + 1 :]), None)
        if option.startswith(f"{name}="):
            return option.partition("=")[2]
    return None


def _model(session: Session, name: str | None) -> dict[str, Any]:
    """The card of a model, of the first one without a name."""
    cards = session.client.get("/v1/models")["data"]
    for card in cards:
        if name in (None, card["id"]):
            if "simulated" in card.get("flotilla", {}).get("engines", []):
                note("flotilla: the simulated engine answers; these figures are not a GPU's")
            return dict(card)
    wanted = f"the model {name!r}" if name else "a model"
    raise CommandError(f"{session.client.url} does not have {wanted}", ExitCode.NOT_FOUND)


def _show_waits(session: Session, model: str, age_s: float) -> None:
    """Print how long this model's jobs of the last `age_s` waited, but for its counts of tokens."""
    words = f"model:{model} since:{math.ceil(age_s + _CLOCK_S)}s"
    waits = [
        max(0.0, job["started_at"] - job["created_at"])
        for job in session.client.list_jobs(words, _MOST_WAITS)["data"]
        if job.get("started_at") is not None and job["endpoint"] != "/tokenize"
    ]
    show(table(("", ">"), summary(waits)))


def summary(waits_s: Sequence[float]) -> list[tuple[str, str]]:
    """Rows of a table: how many jobs, and the median, 99th percentile and maximum wait in ms."""
    rows = [("Jobs whose wait in the queue was read:", str(len(waits_s)))]
    if waits_s:
        p99 = quantiles(waits_s, n=100, method="inclusive")[-1] if len(waits_s) > 1 else waits_s[0]
        for name, wait_s in (("Median", median(waits_s)), ("P99", p99), ("Longest", max(waits_s))):
            rows.append((f"{name} wait in the queue (ms):", f"{wait_s * 1000:.2f}"))
    return rows
