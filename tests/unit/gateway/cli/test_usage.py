"""`flotilla usage` against a gateway of canned answers."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.unit.gateway.cli.conftest import Flotilla
from tests.unit.gateway.cli.stub import StubGateway

FIGURES = {
    "jobs": 12, "completed": 10, "failed": 0, "cancelled": 2, "expired": 0, "input_tokens": 51_200,
    "input_cached_tokens": 40_960, "output_tokens": 3110, "queue_s": 0.44, "engine_s": 61.2,
    "wasted_s": 0.0, "uncounted_jobs": 0,
}  # fmt: skip


def table(*by: str, **row: Any) -> dict[str, Any]:
    return {"object": "usage", "by": list(by), "data": [FIGURES | row], "total": FIGURES}


def test_the_table_ends_with_the_total(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers["GET /admin/usage"] = table("tenant", tenant="team")
    head, row, total = flotilla("usage").stdout.splitlines()
    assert head.split()[:4] == ["TENANT", "JOBS", "INPUT", "TOKENS"]
    assert row.split()[:3] == ["team", "12", "51.2k"]
    assert row.split()[-2:] == ["0.0", "s"]
    assert total.split()[:3] == ["total", "12", "51.2k"]


def test_the_options_are_the_query(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers["GET /v1/usage"] = table("day", "key", day="2026-11-28", key="")
    result = flotilla("usage", "--own", "--by", "day,key", "--model", "m", "--days", "1", "--json")
    assert json.loads(result.stdout)["total"] == FIGURES
    (sent,) = stub.requests
    query = parse_qs(urlsplit(sent.path).query)
    assert {name: query[name] for name in ("by", "model")} == {"by": ["day,key"], "model": ["m"]}
    assert len(query["from"][0]) == len("2026-11-28")
    assert "tenant" not in query


def test_own_use_ends_with_the_limits(flotilla: Flotilla, stub: StubGateway) -> None:
    used = {"tokens_today": 1_200_000, "tokens_this_month": 3_000_000}
    of_tenant = {"limits": {"tokens_per_day": 5_000_000}, "used": used}
    own = table("model", model="m") | {"limits": {"tenant": of_tenant, "key": None}}
    stub.answers["GET /v1/usage"] = own
    shown = flotilla("usage", "--own").stdout.splitlines()
    assert shown[-1] == "this tenant: 1.2M of 5.0M tokens/day"
    assert shown[-2].split()[0] == "total"
