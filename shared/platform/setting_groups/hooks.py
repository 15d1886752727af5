"""Names of hooks, as settings have them: `KIND=module:function`."""

from __future__ import annotations

import re
from typing import Literal, cast

HookKind = Literal["before", "after"]
_HOOK = re.compile(r"(before|after)\s*=\s*([A-Za-z_][\w.]*:[A-Za-z_][\w.]*)")


def parse_hooks(text: str) -> list[tuple[HookKind, str]]:
    """(kind, `module:function`) of each hook, in order, comma separated. Raises ValueError."""
    hooks = []
    for entry in filter(None, map(str.strip, text.split(","))):
        match = _HOOK.fullmatch(entry)
        if match is None:
            raise ValueError(
                f"{entry!r} is not before=MODULE:FUNCTION or after=..., as after=my_hooks:check"
            )
        hooks.append((cast(HookKind, match[1]), match[2]))
    return hooks
