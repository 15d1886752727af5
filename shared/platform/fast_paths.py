"""Which shortcuts through private parts of other libraries this process takes.

Each shortcut (`FastPath`) saves CPU time and has a plain way beside it that uses public interfaces
only. The plain way is taken where the installed library is not as the shortcut expects, and
everywhere with `FLOTILLA_FAST_PATHS=off`. What each saves is in load_tests/README.md, "Speed
tricks".
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from typing import Any, Literal

log = logging.getLogger("flotilla.fast_paths")

_mode: Literal["auto", "off"] = "auto"


def configure(mode: Literal["auto", "off"]) -> None:
    """Choose for the whole process. Call it once, before anything is connected."""
    global _mode
    _mode = mode
    if mode == "off":
        log.info("FLOTILLA_FAST_PATHS=off: using public interfaces of uvicorn, redis-py, vLLM only")


class FastPath:
    """One shortcut: the library it reaches into, and the check that it still may."""

    def __init__(self, name: str, problem: Callable[[], str] = lambda: "") -> None:
        """`problem` returns why the installed library can't be used so, or an empty string."""
        self._name = name
        self._problem = problem
        self._checked = False
        self._usable = False

    def enabled(self) -> bool:
        """Whether the shortcut is to be taken. Checks the library at the first call."""
        if _mode == "off":
            return False
        if not self._checked:
            self._checked = True
            problem = self._problem()
            self._usable = not problem
            if problem:
                self._log(problem)
        return self._usable

    def disable(self, problem: str) -> None:
        """Take the plain way from now on; `problem` is what turned out while the path was used."""
        self._checked, self._usable = True, False
        self._log(problem)

    def _log(self, problem: str) -> None:
        log.warning("%s: taking the plain way, which costs more CPU time: %s", self._name, problem)


def parameters_differ(function: Callable[..., Any], expected: str) -> str:
    """A sentence if `function`'s parameters are not `expected` (names, separated by spaces)."""
    found = " ".join(inspect.signature(function).parameters)
    name = getattr(function, "__qualname__", repr(function))
    return "" if found == expected else f"{name} takes ({found}), expected ({expected})"


def attributes_missing(cls: type[Any], expected: Iterable[str]) -> str:
    """A sentence if `cls.__init__` does not set one of the attributes `expected`."""
    code = cls.__init__.__code__
    missing = sorted(set(expected).difference(code.co_names))
    return f"{cls.__qualname__} has no {', '.join(missing)}" if missing else ""
