"""The text of `flotilla up` while everything starts, and when it serves."""

from __future__ import annotations

import json
import shlex
from pathlib import Path


def progress(late: list[str], waited_s: float) -> str:
    """Which processes are not ready yet."""
    workers = [name for name in late if name.startswith("worker-")]
    if workers:
        verb = "is" if len(workers) == 1 else "are"
        return f"{', '.join(workers)} {verb} loading the model, {waited_s:.0f} s"
    return f"waiting for {', '.join(late)}, {waited_s:.0f} s"


def welcome(
    *, url: str, model: str, simulated: bool, workers: str, logs: Path, with_key: bool
) -> str:
    """What the user reads when everything serves; `workers` is their number in words."""
    body = {
        "model": model,
        "stream": True,
        "messages": [{"role": "user", "content": "What is Flotilla?"}],
    }
    header = " -H 'Content-Type: application/json'"
    if with_key:
        header += ' -H "Authorization: Bearer $OPENAI_API_KEY"'
    lines = [
        f"Flotilla serves on {url}",
        "",
        f"model    {model}",
        f"workers  {workers}",
        f"logs     {logs}",
        "",
        f"curl -N {url}/v1/chat/completions{header} \\",
        f"  -d {shlex.quote(json.dumps(body))}",
        "",
        "Ctrl-C stops everything.",
    ]
    if simulated:
        lines.insert(3, "engine   SIMULATED: no model runs, every answer is made up")
    return "\n" + "\n".join(f"  {line}".rstrip() for line in lines) + "\n"
