"""The command `flotilla`, run in the test's own process."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from gateway.cli.main import app


def run_flotilla(
    *arguments: str, environment: dict[str, str], code: int | None = 0, stdin: str | None = None
) -> Result:
    """What the command printed; it must end with the exit status `code`; None: with any."""
    result = CliRunner().invoke(app, list(arguments), env=environment, input=stdin)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert code in (result.exit_code, None), (result.stdout, result.stderr)
    return result
