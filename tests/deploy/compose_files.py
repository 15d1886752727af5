"""Reads the compose files as where no variable is set."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tests.harness.settings import ROOT

COMPOSE = ROOT / "compose"
OVERRIDES = sorted(COMPOSE.glob("compose.*.yaml"))


class _Loader(yaml.SafeLoader):
    """Reads Compose's own tags, `!override` and `!reset`, as if they were not there."""


def _untagged(loader: yaml.SafeLoader, _: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return None


_Loader.add_multi_constructor("!", _untagged)


def load(path: Path) -> dict[str, Any]:
    """Return a file with `${NAME:-default}` replaced by its default."""
    text = re.sub(r"(?<!\$)\$\{\w+:-([^}]*)\}", r"\1", path.read_text())
    loaded: dict[str, Any] = yaml.load(text, _Loader)
    return loaded
