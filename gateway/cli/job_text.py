"""Jobs as text: a list, one job, its timeline, why it waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from gateway.cli.output import clock, duration, line, since, state, table
from shared.platform.printable import printable

_MAX_TEXT = 2000
Object = Mapping[str, Any]


def job_table(jobs: Sequence[Object]) -> RenderableType:
    """A list of jobs, with their tenants if there are several."""
    several = len({job.get("tenant") for job in jobs}) > 1
    columns = ["JOB", "STATE", "MODEL", "LANE", "AGE>", "WAIT>", "TOKENS>", "TRY>", "WORKER"]
    tenant = ["TENANT"] if several else []
    return table([*columns, *tenant, "ERROR"], (_row(job, with_tenant=several) for job in jobs))


def _row(job: Object, *, with_tenant: bool) -> Sequence[Any]:
    attempts = job.get("attempts") or []
    usage, error = job.get("usage") or {}, job.get("error") or {}
    waited = since(job["created_at"], job.get("started_at") or job.get("finished_at"))
    position = job.get("position")
    return (
        job["id"],
        state(job["state"]),
        job["model"],
        job["lane"],
        since(job["created_at"]),
        f"no. {position}, {waited}" if position else waited,
        usage.get("completion_tokens", ""),
        len(attempts) or "",
        job.get("worker") or (attempts[-1]["worker"] if attempts else ""),
        *([job.get("tenant")] if with_tenant else ()),
        error.get("code") or error.get("message", ""),
    )


def job_page(job: Object, events: Sequence[Object] = ()) -> RenderableType:
    """One job: its fields, its attempts or its timeline, its text so far."""
    parts: list[RenderableType] = [table(("", ""), _fields(job))]
    if events:
        parts += [Text(), Text("timeline", "bold"), timeline({"events": events})]
    text = job.get("text")
    if text:
        cut = text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + " ..."
        parts += [Text(), Text("text", "bold"), Text(printable(cut))]
    return Group(*parts)


def _fields(job: Object) -> Iterable[Sequence[Any]]:
    usage = job.get("usage") or job.get("usage_so_far") or {}
    error = job.get("error") or {}
    shown = {
        "job": job["id"],
        "state": state(job["state"]),
        "endpoint": job["endpoint"],
        "model": f"{job['model']} (pool {job['pool']}, lane {job['lane']})",
        "position": job.get("position"),
        "expected wait": duration(job.get("estimated_wait_s")),
        "waits because": job.get("wait_reason"),
        "submitted": f"{clock(job['created_at'])}, {since(job['created_at'])} ago",
        "waited": since(job["created_at"], job["started_at"]) if job.get("started_at") else "",
        "ran": since(job["started_at"], job.get("finished_at")) if job.get("started_at") else "",
        "tokens": f"{usage['prompt_tokens']} in, {usage['completion_tokens']} out"
        if {"prompt_tokens", "completion_tokens"} <= usage.keys()
        else "",
        "attempts": ", ".join(
            f"{each['worker']} ({each['outcome'] or 'runs'})" for each in job.get("attempts") or []
        ),
        "retried from": job.get("retried_from"),
        "tenant": job.get("tenant"),
        "request id": job.get("request_id"),
        "trace id": job.get("trace_id"),
        "metadata": ", ".join(f"{name}={value}" for name, value in job["metadata"].items()),
        "error": " ".join(str(error[key]) for key in ("code", "message") if error.get(key)),
    }
    return ((name, value) for name, value in shown.items() if value not in (None, ""))


def timeline(body: Object) -> RenderableType:
    """What has happened to a job: each event with the time since the first."""
    events = body["events"]
    began_at = events[0]["at"] if events else 0.0
    return table(
        ("TIME", "AFTER>", "EVENT", "WORKER", ""),
        (
            (
                clock(each["at"]),
                f"{each['at'] - began_at:.3f} s",
                each["event"],
                each.get("worker") or "",
                each.get("text") or "",
            )
            for each in events
        ),
    )


def why_text(body: Object) -> RenderableType:
    """The sentence, and the facts behind it."""
    facts = [Text(f"  {line(fact['name'])}: {line(fact['text'])}") for fact in body["facts"]]
    return Group(Text(line(body["sentence"]), "bold"), *facts)
