"""Makes a function a command that calls a gateway: common options, examples, exit codes."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer
from rich.console import RenderableType

from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.gateway_client import GatewayClient, address
from gateway.cli.output import json_text, note, show
from shared.platform.printable import escaped

P = ParamSpec("P")

_PANEL = "Gateway and output"
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="The gateway; else FLOTILLA_URL, else the `flotilla up` of this folder.",
        metavar="URL",
        rich_help_panel=_PANEL,
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        help="File whose first line is the API key; else FLOTILLA_API_KEY.",
        metavar="FILE",
        rich_help_panel=_PANEL,
    ),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", min=0.1, help="Seconds for each answer.", rich_help_panel=_PANEL),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the API's JSON.", rich_help_panel=_PANEL)
]


@dataclass
class Session:
    """One run of a command: its client and the form of its output."""

    client: GatewayClient
    as_json: bool
    url: str | None = None
    """The option `--url`."""
    on_interrupt: str = ""
    """A sentence that is printed after Ctrl-C."""

    def show(self, body: Any, render: Callable[[Any], RenderableType]) -> None:
        """Print an answer: its JSON, or what `render` makes of it."""
        if self.as_json:
            print(json_text(body, indent=2))
        else:
            show(render(body))

    def line(self, body: Any) -> None:
        """Print one of several JSON objects, on one line."""
        print(json_text(body), flush=True)


def examples(*commands: str) -> str:
    """The end of a help text."""
    return "\n\n".join(["Examples:", *(f"  {command}" for command in commands)])


def gateway_command(
    app: typer.Typer, name: str, *commands: str
) -> Callable[
    [Callable[Concatenate[Session, P], ExitCode | None]],
    Callable[Concatenate[Session, P], ExitCode | None],
]:
    """Register a function whose first parameter is a Session; `commands` are examples of it.

    The options of the gateway and `--json` are added here. Errors end the command with their exit
    code; what the function returns is the exit code otherwise.
    """

    def register(
        function: Callable[Concatenate[Session, P], ExitCode | None],
    ) -> Callable[Concatenate[Session, P], ExitCode | None]:
        @functools.wraps(function)
        def run(
            *,
            url: str | None,
            api_key_file: Path | None,
            timeout: float,
            as_json: bool,
            **values: Any,
        ) -> None:
            with _session(url, api_key_file, timeout, as_json=as_json) as session:
                code = function(session, **values)  # type: ignore[call-arg]
            raise typer.Exit(code or ExitCode.OK)

        signature = inspect.signature(function, eval_str=True)
        _, *own = signature.parameters.values()
        parameters = [*own, *_common()]
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[each.replace(kind=each.KEYWORD_ONLY) for each in parameters],
            return_annotation=None,
        )
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        app.command(name, epilog=examples(*commands))(run)
        return function

    return register


def _common() -> list[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter("url", kind, default=None, annotation=Url),
        inspect.Parameter("api_key_file", kind, default=None, annotation=KeyFile),
        inspect.Parameter("timeout", kind, default=30.0, annotation=Timeout),
        inspect.Parameter("as_json", kind, default=False, annotation=AsJson),
    ]


@contextmanager
def _session(
    url: str | None, key_file: Path | None, timeout_s: float, *, as_json: bool
) -> Iterator[Session]:
    session: Session | None = None
    try:
        client = GatewayClient(address(url, key_file), timeout_s)
        session = Session(client, as_json, url)
        yield session
    except CommandError as error:
        _report(error, as_json=as_json)
        raise typer.Exit(error.code) from error
    except KeyboardInterrupt:
        note(f"\nInterrupted. {session.on_interrupt if session else ''}".rstrip())
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    finally:
        if session is not None:
            session.client.close()


def _report(error: CommandError, *, as_json: bool) -> None:
    """Print an error to stderr: the gateway's own JSON for programs, else a line."""
    if as_json:
        body = error.body or json.dumps({"error": {"message": str(error), "code": None}}).encode()
        print(escaped(body.decode(errors="replace")), file=sys.stderr)
    else:
        note(f"flotilla: {error}")
