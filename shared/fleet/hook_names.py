"""Names of hooks, as settings have them: `KIND=module:function`."""

from __future__ import annotations

import re
from typing import Annotated, Literal, cast

from pydantic import AfterValidator

from shared.platform.settings import Names

HookKind = Literal["before", "after"]
_HOOK = re.compile(r"(before|after)\s*=\s*([A-Za-z_][\w.]*:[A-Za-z_][\w.]*)")


def parse_hook(text: str) -> tuple[HookKind, str]:
    """(kind, `module:function`) of a hook. Raises ValueError."""
    match = _HOOK.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not before=MODULE:FUNCTION or after=..., as after=my_hooks:check"
        )
    return cast(HookKind, match[1]), match[2]


def _check(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        parse_hook(name)
    return names


HookNames = Annotated[Names, AfterValidator(_check)]
