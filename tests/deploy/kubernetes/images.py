"""The images of the compose files, which the manifests must use too."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.deploy.compose_files import COMPOSE, OVERRIDES, load
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
    users: dict[str, str] = {}
    found: dict[str, Image] = {}
    for path in (COMPOSE / "compose.yaml", *OVERRIDES):
        for name, service in load(path)["services"].items():
            users.setdefault(name, service.get("user", ""))
            if "image" in service:
                dockerfile = ROOT / service.get("build", {}).get("dockerfile", "")
                image = found.setdefault(service["image"], Image(set(), dockerfile))
                image.users.add(service.get("user", users[name]))
    return found
