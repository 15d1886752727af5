"""The operator actions: what operators can have done on every worker of a pool.

Most are routes of the engine's own application, which the worker calls as it calls an endpoint, so
options and answers are vLLM's. The gateway checks the options and sends the action to the workers
(`gateway/apis/admin/`); a worker carries it out in `worker/core/control.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlencode

from shared.job.errors import BadRequest

_MAX_TEXT = 1024
_MAX_ITEMS = 16


class OptionKind(StrEnum):
    """The type of an option's value."""

    TEXT = "a string of 1 to 1024 characters"
    WHOLE = "a whole number"
    YES_NO = "true or false"
    TEXTS = "a list of strings"
    SLEEP_MODE = "`abort` or `wait`"


@dataclass(frozen=True, slots=True)
class OperatorAction:
    """One row of the table."""

    name: str
    """In `POST /admin/pools/{pool}/{name}`."""
    path: str
    """The gateway's other route for it, which has vLLM's name and vLLM's answer."""
    summary: str
    method: str = "POST"
    engine_path: str = ""
    """The engine's route; empty: the worker does it without its engine."""
    in_query: bool = True
    """The engine takes the options in the query, not in the body."""
    options: Mapping[str, OptionKind] = field(default_factory=dict)
    required: frozenset[str] = frozenset()

    def query(self, options: Mapping[str, Any]) -> bytes:
        """The engine route's query string."""
        if not self.in_query:
            return b""
        words = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in options.items()
        }
        return urlencode(words, doseq=True).encode()


LOAD_ADAPTER = OperatorAction(
    name="load_lora_adapter",
    path="/v1/load_lora_adapter",
    engine_path="/v1/load_lora_adapter",
    in_query=False,
    options={
        "lora_name": OptionKind.TEXT,
        "lora_path": OptionKind.TEXT,
        "load_inplace": OptionKind.YES_NO,
        "is_3d_lora_weight": OptionKind.YES_NO,
    },
    required=frozenset({"lora_name", "lora_path"}),
    summary="Load a LoRA adapter on all workers of the pool, and on those that start later",
)
UNLOAD_ADAPTER = OperatorAction(
    name="unload_lora_adapter",
    path="/v1/unload_lora_adapter",
    engine_path="/v1/unload_lora_adapter",
    in_query=False,
    options={"lora_name": OptionKind.TEXT, "lora_int_id": OptionKind.WHOLE},
    required=frozenset({"lora_name"}),
    summary="Unload a LoRA adapter",
)
SLEEP = OperatorAction(
    name="sleep",
    path="/sleep",
    engine_path="/sleep",
    options={"level": OptionKind.WHOLE, "mode": OptionKind.SLEEP_MODE},
    summary="Claim nothing more, hand the running jobs back and free the GPU's memory",
)
WAKE_UP = OperatorAction(
    name="wake_up",
    path="/wake_up",
    engine_path="/wake_up",
    options={"tags": OptionKind.TEXTS},
    summary="End `sleep`, and claim jobs again",
)
PAUSE = OperatorAction(
    name="pause",
    path="/pause",
    options={"intake": OptionKind.YES_NO},
    summary="Claim no more jobs; those that run go on. Also on workers that start later. With "
    "`intake`: refuse new requests instead, and work on what is queued",
)
RESUME = OperatorAction(
    name="resume",
    path="/resume",
    summary="Claim jobs, and accept requests, again after `pause`",
)
IS_PAUSED = OperatorAction(
    name="is_paused", path="/is_paused", method="GET", summary="Whether the workers claim no jobs"
)

ACTIONS: dict[str, OperatorAction] = {
    action.name: action
    for action in (
        LOAD_ADAPTER,
        UNLOAD_ADAPTER,
        SLEEP,
        WAKE_UP,
        OperatorAction(
            name="is_sleeping",
            path="/is_sleeping",
            method="GET",
            engine_path="/is_sleeping",
            summary="Whether the engines sleep",
        ),
        OperatorAction(
            name="reset_prefix_cache",
            path="/reset_prefix_cache",
            engine_path="/reset_prefix_cache",
            options={
                "reset_running_requests": OptionKind.YES_NO,
                "reset_external": OptionKind.YES_NO,
            },
            summary="Empty the prefix cache",
        ),
        OperatorAction(
            name="reset_mm_cache",
            path="/reset_mm_cache",
            engine_path="/reset_mm_cache",
            summary="Empty the cache of multi-modal inputs",
        ),
        OperatorAction(
            name="reset_encoder_cache",
            path="/reset_encoder_cache",
            engine_path="/reset_encoder_cache",
            summary="Empty the encoder cache",
        ),
        OperatorAction(
            name="start_profile",
            path="/start_profile",
            engine_path="/start_profile",
            in_query=False,
            options={
                "profile_prefix": OptionKind.TEXT,
                "delay_iterations": OptionKind.WHOLE,
                "max_iterations": OptionKind.WHOLE,
            },
            summary="Start the profiler (needs vLLM's `--profiler-config`)",
        ),
        OperatorAction(
            name="stop_profile",
            path="/stop_profile",
            engine_path="/stop_profile",
            in_query=False,
            summary="Stop the profiler and write what it has recorded",
        ),
        PAUSE,
        RESUME,
        IS_PAUSED,
        OperatorAction(
            name="server_info",
            path="/server_info",
            method="GET",
            engine_path="/server_info",
            options={"config_format": OptionKind.TEXT},
            summary="The engine's configuration and environment",
        ),
    )
}
"""By name."""
DRAIN = OperatorAction(
    name="drain",
    path="",
    summary="Hand the running jobs over to other workers, or finish them, then end the process",
)
WORKER_ACTIONS: dict[str, OperatorAction] = {DRAIN.name: DRAIN}
"""Actions for one worker alone, by name: `POST /admin/workers/{worker}/{name}`."""
PATHS: dict[str, OperatorAction] = {action.path: action for action in ACTIONS.values()}
"""By the path with vLLM's name."""


def check_options(action: OperatorAction, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, those that are null left out. Raises BadRequest."""
    options = {name: value for name, value in given.items() if value is not None}
    for name, value in options.items():
        kind = action.options.get(name)
        if kind is None:
            known = ", ".join(action.options) or "none"
            raise BadRequest(
                f"Unknown option {name[:64]!r}; {action.name} has: {known}.", name[:64]
            )
        if not _fits(kind, value):
            raise BadRequest(f"`{name}` must be {kind.value}.", name)
    for name in sorted(action.required - options.keys()):
        raise BadRequest(f"`{name}` is missing: {action.options[name].value}.", name)
    return options


def read_words(action: OperatorAction, words: Mapping[str, list[str]]) -> dict[str, Any]:
    """Options from a query string, each name with all of its values. Raises BadRequest."""
    options: dict[str, Any] = {}
    for name, values in words.items():
        kind, value = action.options.get(name), values[-1]
        if kind is OptionKind.TEXTS:
            options[name] = values
        elif kind is OptionKind.WHOLE and value.isascii() and value.isdigit():
            options[name] = int(value[:9])
        elif kind is OptionKind.YES_NO and value.lower() in {"true", "false", "1", "0"}:
            options[name] = value.lower() in {"true", "1"}
        else:
            options[name] = value
    return check_options(action, options)


def _fits(kind: OptionKind, value: Any) -> bool:
    match kind:
        case OptionKind.TEXT:
            return isinstance(value, str) and 0 < len(value) <= _MAX_TEXT and value.isprintable()
        case OptionKind.WHOLE:
            return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31
        case OptionKind.YES_NO:
            return isinstance(value, bool)
        case OptionKind.SLEEP_MODE:
            return value in ("abort", "wait")
        case OptionKind.TEXTS:
            return (
                isinstance(value, list)
                and len(value) <= _MAX_ITEMS
                and all(_fits(OptionKind.TEXT, each) for each in value)
            )
