"""`flotilla bench`: a load for any OpenAI server, measured as `vllm bench serve` measures it."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any, get_type_hints

import typer

from gateway.cli.bench_options import BenchOptions
from gateway.cli.command import Session, gateway_command
from gateway.cli.exit_codes import ExitCode

app = typer.Typer()


def bench(session: Session, /, **values: Any) -> ExitCode:
    """Send a load to a server and print its throughput, goodput, TTFT, TPOT, ITL and E2EL.

    The options, the table and the meaning of every figure are those of `vllm bench serve`; any
    server with OpenAI's API will do.
    """
    from gateway.cli.bench_run import send_and_report  # aiohttp would delay every other command

    return send_and_report(session, BenchOptions(**values))


# The command line has an option for each field.
_HINTS = get_type_hints(BenchOptions, include_extras=True)
bench.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        inspect.Parameter("session", inspect.Parameter.POSITIONAL_ONLY, annotation=Session),
        *(
            inspect.Parameter(
                each.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=each.default,
                annotation=_HINTS[each.name],
            )
            for each in fields(BenchOptions)
        ),
    ],
    return_annotation=ExitCode,
)
gateway_command(
    app,
    "bench",
    "flotilla bench --rate 8 --for 30s --slo ttft_p99=1.5s",
    "flotilla bench --max-concurrency 32 --num-prompts 500 --save now.json --compare before.json",
)(bench)
