"""The images of the compose files, which the manifests must use too."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.harness.settings import ROOT


@dataclass
class Image:
    """An image, as the compose files describe it."""

    users: set[str]
    dockerfile: Path

    def command(self) -> list[str]:
        """Return its default command, the CMD of its Dockerfile."""
        (command,) = re.findall(r"^CMD (\[.*\])$", self.dockerfile.read_text(), re.MULTILINE)
        return json.loads(command)  # type: ignore[no-any-return]


@cache
def images_of_compose() -> dict[str, Image]:
    """Return all images of the compose files by name and tag.

    A service in an override file has the user of the same service in compose.yaml.
    """
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
    """Return an image's name with the defaults of its variables."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", image)


class _Loader(yaml.SafeLoader):
    """A YAML loader that accepts Compose's tags, such as !override."""


def _untagged(loader: yaml.SafeLoader, _: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node)


_Loader.add_multi_constructor("!", _untagged)
