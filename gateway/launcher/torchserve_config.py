"""TorchServe's model_config.yaml with a vLLM handler -> flotilla.yaml. Pure but for `exists`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shared.platform.settings import SettingsError

_ENGINE = "vllm_engine_config"
_SAME = {
    "minWorkers": "min_workers",
    "maxWorkers": "max_workers",
    "startupTimeout": "startup_timeout_s",
    "jobQueueSize": "max_queue_depth",
}
_NO_MEANING = frozenset(
    {
        "asyncCommunication",
        "batchSize",
        "continuousBatching",
        "deviceType",
        "maxBatchDelay",
        "maxRetryTimeoutInSec",
        "parallelType",
        "useJobTicket",
    }
)
"""Options of what vLLM's continuous batching and the queue always do, or do in another way."""
_READ = frozenset({"clientTimeoutInMills", "handler", "parallelLevel", "responseTimeout"})


class Converted(NamedTuple):
    """A model_config.yaml as a flotilla.yaml."""

    file: dict[str, Any]
    """The content of a flotilla.yaml."""
    unused: list[str]
    """Keys that mean nothing here."""


def convert(
    config: Mapping[str, Any],
    where: Path,
    name: str,
    exists: Callable[[Path], bool] = Path.exists,
) -> Converted:
    """`where`: the file, to whose folder its paths are relative. `name`: of the pool.

    Raises SettingsError.
    """
    handler = _mapping(config, "handler", where)
    engine = dict(_mapping(handler, _ENGINE, where))
    if not engine and "model_path" not in handler:
        raise SettingsError(f"{where}: there is no `handler.{_ENGINE}`, which names vLLM's model")

    def path(value: Any) -> str:
        inside = where.parent / str(value)
        return str(inside.absolute()) if exists(inside) else str(value)

    pool: dict[str, Any] = {"model": path(engine.pop("model", None) or handler["model_path"])}
    names = engine.pop("served_model_name", None)
    if names:
        pool["served_names"] = names if isinstance(names, list) else [str(names)]
    pool |= {ours: config[theirs] for theirs, ours in _SAME.items() if theirs in config}
    if "clientTimeoutInMills" in config:
        timeout_ms = config["clientTimeoutInMills"]
        if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int | float):
            raise SettingsError(f"{where}: `clientTimeoutInMills` must be a number")
        pool["queue_deadline_s"] = timeout_ms / 1000
    adapters = _mapping(handler, "adapters", where)
    if adapters:
        pool["adapters"] = {name: path(value) for name, value in adapters.items()}
    level = config.get("parallelLevel")
    if isinstance(level, int) and level > 1:
        engine.setdefault("tensor_parallel_size", level)
    arguments = {key: value for key, value in engine.items() if value is not None}
    if arguments:
        pool["engine_args"] = arguments
    file: dict[str, Any] = {"pools": {name: pool}}
    if "responseTimeout" in config:
        file["engine_stall_s"] = config["responseTimeout"]
    unused = sorted(set(config) - set(_SAME) - _NO_MEANING - _READ)
    unused += [
        f"handler.{key}" for key in sorted(set(handler) - {"adapters", "model_path", _ENGINE})
    ]
    return Converted(file, unused)


def _mapping(values: Mapping[str, Any], key: str, where: Path) -> Mapping[str, Any]:
    value = values.get(key) or {}
    if not isinstance(value, Mapping):
        raise SettingsError(f"{where}: `{key}` must be a mapping")
    return value
