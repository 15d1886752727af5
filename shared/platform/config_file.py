"""flotilla.yaml: where it is, and its content as plain values.

settings.py joins the file with the variables.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

NAME = "flotilla.yaml"
_MERGE = "tag:yaml.org,2002:merge"
"""The tag of the key `<<`, which takes over another mapping's keys."""


class SettingsError(ValueError):
    """A setting is wrong; the message names where it is, the value and what is accepted."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML's plain values; a key that is there twice is an error, not the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """See yaml.SafeLoader."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} is there twice", key_node.start_mark
                )
            seen.add(key)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def find(given: str | Path | None) -> Path | None:
    """The file's absolute path; None if none is given and the working directory has none."""
    if given:
        return Path(given).absolute()
    path = Path(NAME)
    return path.absolute() if path.is_file() else None


def read(path: Path) -> dict[str, Any]:
    """The top-level keys and their values. Raises SettingsError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from error
    return parse(text, str(path))


def parse(text: str, where: str) -> dict[str, Any]:
    """The top-level keys in a YAML text and their values. Raises SettingsError."""
    try:
        values = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).replace('"<unicode string>", ', "").split())
        raise SettingsError(f"{where}: {problem}") from error
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise SettingsError(f"{where}: this must be a mapping, `key: value` on each line")
    return values
