"""Named checks of one client library, run in order; one line of JSON for each."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import os
import sys
import time
import traceback
import wave
from collections.abc import Callable
from typing import Any

BASE = os.environ["CLIENTS_URL"]
"""The gateway's address, without /v1."""
V1 = f"{BASE}/v1"
KEY = os.environ.get("CLIENTS_KEY", "none-needed-on-loopback")
MODELS: dict[str, str] = json.loads(os.environ["CLIENTS_MODELS"])
"""Model by what it is for: generate, embed, rerank, audio. Checks of others are skipped."""
MODEL, EMBED = MODELS.get("generate", ""), MODELS.get("embed", "")
RERANK, AUDIO = MODELS.get("rerank", ""), MODELS.get("audio", "")
QUESTION = "What is Flotilla?"

_checks: list[tuple[str, str, Callable[[], Any]]] = []


def check(name: str, needs: str = "generate") -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Make a function a check; it may be `async`. It is skipped without the model that it needs."""

    def add(function: Callable[[], Any]) -> Callable[[], Any]:
        _checks.append((name, needs, function))
        return function

    return add


def raises(kind: type[BaseException], call: Callable[[], Any]) -> Any:
    """The error of this kind that the call raises."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def wav() -> bytes:
    """A second of sound: a 440 Hz square wave."""
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(b"".join(_SAMPLES[n * 880 // 16_000 % 2] for n in range(16_000)))
    return data.getvalue()


_SAMPLES = ((8000).to_bytes(2, "little", signed=True), (-8000).to_bytes(2, "little", signed=True))


def main() -> None:
    """Run the checks; exits with 1 if one has failed."""
    failed = False
    for name, needs, function in _checks:
        began, detail = time.monotonic(), ""
        if needs not in MODELS:
            outcome = "skipped"
        else:
            try:
                result = function()
                if inspect.isawaitable(result):
                    asyncio.run(_wait(result))
                outcome = "ok"
            except Exception as error:
                failed, outcome = True, "failed"
                detail = f"{type(error).__name__}: {error}"
                traceback.print_exc()
        line = {"check": name, "outcome": outcome, "seconds": round(time.monotonic() - began, 2)}
        print(json.dumps(line | {"detail": detail}), flush=True)
    sys.exit(failed)


async def _wait(result: Any) -> None:
    await result
