"""`flotilla doctor`: checks the fleet from this machine; every finding comes with what to do.

What is wrong with the fleet a gateway finds (`/admin/doctor`). Here are the checks of this machine
(clock, key, version), and those that work without an operator's key.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from typing import Any, NamedTuple

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from gateway.cli.command import Session, gateway_command
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.gateway_client import GatewayClient
from gateway.cli.output import level, line
from shared.fleet import limits
from shared.fleet.limits import Level
from shared.platform.redis_url import without_password

app = typer.Typer()
_MARKS = {Level.OK: "ok  ", Level.WARNING: "WARN", Level.PROBLEM: "FAIL"}
_CHECKS = {
    "redis": limits.REDIS_UNAVAILABLE,
    "eviction": limits.REDIS_EVICTS,
    "format": limits.GATEWAY_FORMAT,
    "relay": limits.GATEWAY_RELAY,
    "fleet": limits.GATEWAY_FLEET,
    "tasks": limits.GATEWAY_TASKS,
}
"""By the name of a check of /readyz."""


_LOG = "See the gateway's log."
_REDIS_FIRST = "First do what stands above for Redis."
_KEY = "Give a key of FLOTILLA_API_KEYS: --api-key-file, FLOTILLA_API_KEY."
_OPERATOR = "Give an operator's key (FLOTILLA_ADMIN_KEYS): --api-key-file, FLOTILLA_API_KEY."


class Finding(NamedTuple):
    """The result of one check."""

    name: str
    state: Level
    text: str
    remedy: str = ""
    """Empty if nothing is wrong."""


@gateway_command(
    app, "doctor", "flotilla doctor", "flotilla doctor --url http://10.0.0.1:8000 --json"
)
def doctor(session: Session) -> ExitCode:
    """Check gateway, Redis, keys, clock, models, workers, storage, webhooks; 1 if one is wrong."""
    try:
        ready = session.client.send("GET", "/readyz", any_status=True).json()
    except (CommandError, ValueError) as error:
        do = "Start one with `flotilla up`, or name another with --url or FLOTILLA_URL."
        ready, found = None, [Finding("gateway", Level.PROBLEM, str(error), do)]
        found += _proxy(session.client)
    else:
        found = list(_findings(session.client, ready))
    body = {"object": "list", "data": [each._asdict() for each in found]}
    session.show(body, lambda _: _page(found))
    if ready is None:
        return ExitCode.UNREACHABLE
    wrong = any(each.state is Level.PROBLEM for each in found)
    return ExitCode.FAILED if wrong else ExitCode.OK


def _proxy(client: GatewayClient) -> Iterator[Finding]:
    """The proxy that calls of this gateway go through, which sees the key of a plain one."""
    if client.proxy:
        yield Finding("proxy", Level.OK, f"calls go through {without_password(client.proxy)}")


def _findings(client: GatewayClient, ready: Mapping[str, Any]) -> Iterator[Finding]:
    """All checks, in the order in which one would make them by hand."""
    checks: Mapping[str, str] = ready.get("checks", {})
    otherwise = _LOG if checks.get("redis", "ok") == "ok" else _REDIS_FIRST
    if checks or ready.get("status") != "not ready":
        yield Finding("gateway", Level.OK, f"{client.where.url} answers")
    else:
        text = f"{client.where.url} answers, and is not ready"
        yield Finding("gateway", Level.PROBLEM, text, f"{_LOG} With an operator's key it says why.")
    yield from _proxy(client)
    for name, text in checks.items():
        good = text == "ok"
        do = _CHECKS[name].do if name in _CHECKS else _LOG
        yield Finding(name, Level.OK if good else Level.PROBLEM, text, "" if good else do)
    for name, path, check, bad, do in (
        ("version", "/version", _version, Level.WARNING, _KEY),
        ("key", "/v1/models", _models, Level.PROBLEM, _KEY),
        ("doctor", "/admin/doctor", _fleet, Level.WARNING, _OPERATOR),
    ):  # fmt: skip
        try:
            body = client.get(path)
        except CommandError as error:
            known = error.status in (401, 403)  # else it may not be the key
            yield Finding(name, bad, f"not read: {error}", do if known else otherwise)
        else:
            yield from check(body)


def _version(body: Mapping[str, Any]) -> Iterator[Finding]:
    here, there, engines = metadata.version("flotilla"), body["version"], sorted(body["engines"])
    do = f"Install flotilla {there} here, or update the gateway."
    if here == there:
        yield Finding("version", Level.OK, there)
    else:
        text = f"the gateway is {there}, this command {here}"
        yield Finding("version", Level.WARNING, text, do)
    if any("simulated" in engine for engine in engines):
        text = "the engine is SIMULATED: no model runs, every answer is made up"
        do = "For real answers start workers without FLOTILLA_ENGINE=simulated."
        yield Finding("engine", Level.WARNING, text, do)
    elif len(engines) > 1:
        text = "workers have different engines: " + ", ".join(engines)
        do = "Update the workers one after the other: `flotilla workers drain`."
        yield Finding("engine", Level.WARNING, text, do)


def _models(body: Mapping[str, Any]) -> Iterator[Finding]:
    yield Finding("key", Level.OK, "the gateway accepts this client")
    if not body["data"]:
        text = "no worker has registered a model"
        yield Finding("model", Level.PROBLEM, text, limits.NO_WORKER.do)
    for model in body["data"]:
        about = model.get("flotilla") or {}
        if about.get("ready", True):
            yield Finding("model", Level.OK, f"{model['id']} is served")
        else:
            text = f"{model['id']}: {about.get('wait_reason') or 'no worker is ready'}"
            do = f"{limits.NO_WORKER.do} If none is to serve it: `flotilla models rm NAME`."
            yield Finding("model", Level.PROBLEM, text, do)


def _fleet(body: Mapping[str, Any]) -> Iterator[Finding]:
    skew_s = abs(time.time() - body["at"])
    if limits.CLOCK.level(skew_s) is Level.OK:
        yield Finding("clock", Level.OK, "this machine and the fleet agree")
    else:
        text = limits.CLOCK.text.format(seconds=skew_s)
        yield Finding("clock", limits.CLOCK.level(skew_s), text, limits.CLOCK.do)
    for each in body["data"]:
        yield Finding(each["name"], Level(each["state"]), each["text"], each["remedy"])


def _page(found: Iterable[Finding]) -> RenderableType:
    lines = []
    for each in found:
        lines.append(level(each.state, f"{_MARKS[each.state]}  {each.name}: {each.text}"))
        if each.remedy:
            lines.append(Text(f"      do: {line(each.remedy)}"))
    return Group(*lines)
