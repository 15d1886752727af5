"""The images that compose/ makes and uses; the manifests take the same."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.manifests import ROOT


@dataclass
class Image:
    """What the compose files say of one."""

    users: set[str]
    dockerfile: Path

    def command(self) -> list[str]:
        """What it runs when it is not told what."""
        (command,) = re.findall(r"^CMD (\[.*\])$", self.dockerfile.read_text(), re.MULTILINE)
        return json.loads(command)  # type: ignore[no-any-return]


@cache
def images_of_compose() -> dict[str, Image]:
    """By name and tag, of all compose files. An override's service has its service's user."""
    folder = ROOT / "compose"
    users: dict[str, str] = {}
    found: dict[str, Image] = {}
    for path in (folder / "compose.yaml", *sorted(folder.glob("compose.*.yaml"))):
        for name, service in yaml.load(path.read_text(), _Loader)["services"].items():
            users.setdefault(name, service.get("user", ""))
            if "image" in service:
                dockerfile = ROOT / service.get("build", {}).get("dockerfile", "")
                image = found.setdefault(_default(service["image"]), Image(set(), dockerfile))
                image.users.add(service.get("user", users[name]))
    return found


def _default(image: str) -> str:
    """With the defaults of its variables."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", image)


class _Loader(yaml.SafeLoader):
    """With Compose's own tags, such as !override."""


def _untagged(loader: yaml.SafeLoader, _: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node)


_Loader.add_multi_constructor("!", _untagged)
