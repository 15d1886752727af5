"""vLLM's arguments as flotilla.yaml has them -> as on vLLM's command line. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

SAMPLING = {
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "max_tokens": "max_new_tokens",
}
"""The sampling parameters for which vLLM takes defaults -> their names there. `max_new_tokens` also
limits what requests ask for."""


def argv_of(arguments: str | Mapping[str, Any]) -> list[str]:
    """The words of a command line, from one or from a mapping of names to values.

    `max_num_seqs: 4`, `max-num-seqs: 4`; true is a flag, false its `--no-` form, null nothing; a
    list is several values, a mapping is JSON. Raises ValueError for quotes that do not match.
    """
    if isinstance(arguments, str):
        return shlex.split(arguments)
    argv = []
    for name, value in arguments.items():
        flag = name.lstrip("-").replace("_", "-")
        if value is False:
            argv.append(f"--no-{flag}")
        elif value is not None:
            argv += [f"--{flag}", *_words(value)]
    return argv


def _words(value: Any) -> list[str]:
    if value is True:
        return []
    if isinstance(value, list):
        return [_word(item) for item in value]
    return [_word(value)]


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def sampling_argv(sampling: Mapping[str, float]) -> list[str]:
    """The argument for default sampling parameters. Raises ValueError for an unknown one."""
    unknown = sorted(set(sampling) - set(SAMPLING))
    if unknown:
        known = ", ".join(SAMPLING)
        raise ValueError(f"`{unknown[0]}` has no default in vLLM; those that have: {known}")
    values = {SAMPLING[name]: value for name, value in sampling.items()}
    return ["--override-generation-config", json.dumps(values)] if values else []


def adapters_argv(adapters: Mapping[str, str]) -> list[str]:
    """The arguments for LoRA adapters, by name."""
    modules = [json.dumps({"name": name, "path": path}) for name, path in adapters.items()]
    return ["--enable-lora", "--lora-modules", *modules] if modules else []
