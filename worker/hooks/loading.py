"""Imports the hooks that a pool's settings name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shared.platform.setting_groups.hooks import HookKind, parse_hooks
from shared.platform.settings import SettingsError


@dataclass(frozen=True, slots=True)
class Hook:
    """One function; it may be `async`. `name` is `module:function`."""

    kind: HookKind
    name: str
    function: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Hooks:
    """The hooks of a pool, each kind in the order in which they are called."""

    before: tuple[Hook, ...]
    after_chunk: tuple[Hook, ...]
    after: tuple[Hook, ...]
    timeout_s: float
    """Time limit of one call."""

    @property
    def at_end(self) -> tuple[Hook, ...]:
        """Those that an answer passes when it is complete."""
        return self.after_chunk + self.after


def load_hooks(names: str, timeout_s: float) -> Hooks | None:
    """The hooks of `FLOTILLA_HOOKS`; None if it names none.

    Raises SettingsError if one can't be imported.
    """
    hooks = [Hook(kind, name, _function(name)) for kind, name in parse_hooks(names)]
    if not hooks:
        return None
    return Hooks(
        before=tuple(hook for hook in hooks if hook.kind == "before"),
        after_chunk=tuple(hook for hook in hooks if hook.kind == "after_chunk"),
        after=tuple(hook for hook in hooks if hook.kind == "after"),
        timeout_s=timeout_s,
    )


def _function(name: str) -> Callable[[Any], Any]:
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the module raises
        raise SettingsError(
            f"FLOTILLA_HOOKS: {name} can't be imported ({type(error).__name__}: {error}); "
            "modules are found in the worker's working directory and on PYTHONPATH"
        ) from error
    if not callable(found):
        raise SettingsError(f"FLOTILLA_HOOKS: {name} is not a function")
    return found  # type: ignore[no-any-return]
