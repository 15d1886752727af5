"""The table of worker/engines/CONTINUATION.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FILE = Path(__file__).parents[2] / "worker" / "engines" / "CONTINUATION.md"


def table(found: Mapping[str, Mapping[str, str]], engine: str) -> str:
    """What was found of each class, by each way; a row ends early where only one was tried."""
    rows = [
        f"| {name} | {ways['prefill']} |" + (f" {ways['forced']} |" if "forced" in ways else "")
        for name, ways in found.items()
    ]
    head = [
        f"Found with {engine} on a CPU.",
        "",
        "| Class of requests | by prefill | by forced replay |",
    ]
    return "\n".join([*head, "|---|---|---|", *rows]) + "\n"
