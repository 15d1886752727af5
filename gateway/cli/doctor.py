"""`flotilla doctor`: checks the fleet from this machine; every finding comes with what to do.

Problems of the fleet come from the overview, others from `/admin/storage` and `/admin/webhooks`.
Here are the checks of this machine (clock, key, version), of API keys that are refused, and those
that work without an operator's key.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from typing import Any, NamedTuple

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from gateway.cli.command import Session, gateway_command
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.gateway_client import GatewayClient
from gateway.cli.limits_text import nearly_used
from gateway.cli.output import count, level, line
from shared.fleet import limits
from shared.fleet.limits import Level
from shared.platform.node_list import without_password

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

    check: str
    level: Level
    text: str
    do: str = ""
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
    wrong = any(each.level is Level.PROBLEM for each in found)
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
        ("overview", "/admin/overview", _overview, Level.WARNING, _OPERATOR),
        ("storage", "/admin/storage", _storage, Level.WARNING, _OPERATOR),
        ("webhooks", "/admin/webhooks", _webhooks, Level.WARNING, _OPERATOR),
        ("usage", "/admin/ledger", _ledger, Level.WARNING, _OPERATOR),
        ("keys", "/admin/keys?limit=1000", _keys, Level.WARNING, _OPERATOR),
        ("budgets", "/admin/tenants", _budgets, Level.WARNING, _OPERATOR),
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


def _overview(body: Mapping[str, Any]) -> Iterator[Finding]:
    skew_s = abs(time.time() - body["at"])
    if limits.CLOCK.level(skew_s) is Level.OK:
        yield Finding("clock", Level.OK, "this machine and the fleet agree")
    else:
        text = limits.CLOCK.text.format(seconds=skew_s)
        yield Finding("clock", limits.CLOCK.level(skew_s), text, limits.CLOCK.do)
    problems = body["verdict"]["problems"]
    if not problems:
        yield Finding("fleet", Level.OK, body["verdict"]["sentence"])
    yield from _problems(problems)


def _storage(body: Mapping[str, Any]) -> Iterator[Finding]:
    if not body["configured"]:
        text = "files and batches are off: the gateway's FLOTILLA_STORAGE_URL is empty"
        yield Finding("storage", Level.OK, text)
    elif not body["problems"]:
        free = body["free_bytes"]
        room = "" if free is None else f", {free / 2**30:,.0f} GiB are free"
        yield Finding("storage", Level.OK, f"files can be stored{room}")
    if body["open_batches"] and not body["problems"]:
        yield Finding("batches", Level.OK, f"{body['open_batches']} advance")
    yield from _problems(body["problems"])


def _webhooks(body: Mapping[str, Any]) -> Iterator[Finding]:
    if not body["problems"]:
        behind = body["endpoints"]
        text = f"events are on their way to {count(behind, 'endpoint')}" if behind else "none waits"
        yield Finding("webhooks", Level.OK, text)
    yield from _problems(body["problems"])


def _ledger(body: Mapping[str, Any]) -> Iterator[Finding]:
    if not body["problems"]:
        dropped = f"; {count(body['dropped'], 'job')} dropped ever" if body["dropped"] else ""
        yield Finding("usage", Level.OK, f"all jobs are in the sums{dropped}")
    yield from _problems(body["problems"])


def _keys(body: Mapping[str, Any]) -> Iterator[Finding]:
    peppers = Counter(key["pepper"] for key in body["data"])
    if refused := peppers["unknown"]:
        yield Finding(
            "keys",
            Level.WARNING,
            f"{count(refused, 'key')} made with another pepper than the gateway's: refused",
            "Rotate or revoke them (`flotilla keys ls`), or set their pepper in "
            "FLOTILLA_KEY_PEPPERS, too.",
        )
    else:
        old = f", {peppers['old']} of them with the old pepper" if peppers["old"] else ""
        yield Finding("keys", Level.OK, f"{count(len(body['data']), 'key')} in Redis{old}")
    yield from _budgets(body)


def _budgets(body: Mapping[str, Any]) -> Iterator[Finding]:
    """Who has used nearly all of a budget, for people; that is no fault of the fleet."""
    for row in body["data"]:
        for text in nearly_used(row.get("limits"), row.get("used")):
            whose = f"the key {row['id']} of {row['tenant']}" if "id" in row else row["tenant"]
            yield Finding("budgets", Level.OK, f"{whose} has used {text}")


def _problems(problems: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """What the gateway has found."""
    for problem in problems:
        found = Level(problem["level"])
        yield Finding(problem["kind"], found, problem["sentence"], problem["do"])


def _page(found: Iterable[Finding]) -> RenderableType:
    lines = []
    for each in found:
        lines.append(level(each.level, f"{_MARKS[each.level]}  {each.check}: {each.text}"))
        if each.do:
            lines.append(Text(f"      do: {line(each.do)}"))
    return Group(*lines)
