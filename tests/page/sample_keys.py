"""Made-up tenants, keys, use and changes, in the shapes of the API."""

from __future__ import annotations

from typing import Any

from tests.page.overviews import AT

CI, OLD, NIGHTLY = (f"key_{letter * 16}" for letter in "abc")
SECRET = "flk_" + "s" * 43
EVIL = "<img src=x onerror=document.title='evil'><script>document.title='evil'</script>"
_DAY_S = 86_400
_LIMITS = dict.fromkeys(
    ("requests_per_minute", "tokens_per_minute", "concurrent_requests", "tokens_per_day",
     "tokens_per_month"), 0
)  # fmt: skip


def used(today: int, this_month: int) -> dict[str, int]:
    """What is used of budgets."""
    return {"tokens_today": today, "tokens_this_month": this_month}


def tenants() -> list[dict[str, Any]]:
    """One with limits, one that has used nearly all, one with a long name, and the operator."""
    long = "the-department-of-very-long-tenant-names-and-of-what-comes-next"
    return [
        tenant("search", used(1_200_000, 31_400_000), tokens_per_day=5_000_000,
                tokens_per_month=50_000_000, requests_per_minute=600),
        tenant("support", used(970_000, 2_100_000), tokens_per_day=1_000_000),
        tenant(long, used(1_234_567_890, 999_999_999_999), tokens_per_month=10**12),
        tenant("ops", used(0, 0), operator=True, last_job_at=None),
    ]  # fmt: skip


def tenant(name: str, has: dict[str, int], **changes: Any) -> dict[str, Any]:
    """A tenant with two keys; its limits are among the changes."""
    limits = {each: changes.pop(each) for each in _LIMITS if each in changes}
    return {
        "tenant": name,
        "operator": False,
        "keys": 2,
        "jobs_kept": 4_210,
        "conversations_kept": 0,
        "bytes_kept": 1,
        "last_job_at": AT - 3,
        "limits": _LIMITS | limits,
        "used": has,
    } | changes


def keys() -> list[dict[str, Any]]:
    """One with limits, one that expired, and one whose names are those of an attacker."""
    limits = {"requests_per_minute": 60, "tokens_per_day": 1_000_000, "concurrent_requests": 8}
    return [
        key(CI, "ci", limits=_LIMITS | limits, used=used(950_000, 2_000_000)),
        key(OLD, "", expires_at=AT - 2_000_000),
        key(NIGHTLY, EVIL, tenant="support", models=["qwen3-8b", EVIL], expires_at=AT + 9e7),
    ]


def key(key_id: str, name: str, **changes: Any) -> dict[str, Any]:
    """A key of a tenant."""
    return {
        "id": key_id,
        "object": "api_key",
        "name": name,
        "tenant": "search",
        "scopes": ["infer", "jobs", "priority"],
        "models": [],
        "hint": "flk_AbCd",
        "created_at": int(AT) - 40 * _DAY_S,
        "created_by": "ops",
        "expires_at": None,
        "limits": _LIMITS,
        "used": used(0, 0),
    } | changes


def changes() -> list[dict[str, Any]]:
    """What operators have changed."""
    found = [
        ("key.rotated", CI, "leaked", {"of_tenant": "search"}),
        ("tenant.limited", "support", EVIL, {"tokens_per_day": 1_000_000}),
        ("pool.pause", "qwen", "", {}),
    ]
    return [
        {
            "id": f"17900000000{number:02d}-0",
            "object": "audit_entry",
            "at": AT - 600 * number,
            "action": action,
            "subject": subject,
            "tenant": "ops",
            "key": OLD if number == 1 else "",
            "reason": reason,
            "details": details,
        }
        for number, (action, subject, reason, details) in enumerate(found)
    ]


def usage(by: str) -> dict[str, Any]:
    """The use of some days, added up by these columns."""
    columns = by.split(",")
    days = [f"2026-09-{day:02d}" for day in range(1, 22)] if "day" in columns else [None]
    others = {
        "tenant": ["search", "support", "the-department-of-very-long-tenant-names"],
        "key": [CI, ""],
        "model": ["qwen3-8b", EVIL],
    }
    (values,) = [others[each] for each in columns if each in others] or [[None]]
    names = [each for each in columns if each in others]
    rows = [
        {"day": day, "tenant": None, "key": None, "model": None}
        | dict.fromkeys(names, value)
        | _figures(1 + number * 31 % 17)
        for number, (day, value) in enumerate((day, each) for day in days for each in values)
    ]
    return {
        "object": "usage",
        "from": "2026-08-23",
        "to": "2026-09-21",
        "by": columns,
        "data": rows,
        "total": _figures(400),
    }


def _figures(times: int) -> dict[str, Any]:
    return {
        "jobs": 1_204 * times,
        "completed": 1_200 * times,
        "failed": 4 * times,
        "cancelled": 0,
        "expired": 0,
        "input_tokens": 400_000 * times,
        "input_cached_tokens": 90_000 * times,
        "output_tokens": 120_000 * times,
        "queue_s": 0.4,
        "engine_s": 612.2 * times,
        "wasted_s": 0.0,
        "uncounted_jobs": 0,
    }
