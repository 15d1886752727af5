"""The API's description names every error that the gateway gives, with its code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.app import create_app
from shared.job.errors import FlotillaError, JobFailed
from tests.settings import Settings
from tests.test_architecture import ROOT

SOURCES = "\n".join(path.read_text() for path in (ROOT / "gateway").rglob("*.py"))


def kinds(kind: type[FlotillaError] = FlotillaError) -> Iterator[type[FlotillaError]]:
    for each in kind.__subclasses__():
        yield each
        yield from kinds(each)


def is_given(kind: type[FlotillaError]) -> bool:
    """A job can end with it, or the gateway raises it, if its API was not deleted."""
    return issubclass(kind, JobFailed) or bool(re.search(rf"\b{kind.__name__}\b", SOURCES))


def test_every_error_is_in_the_description() -> None:
    paths = create_app(Settings()).fastapi.openapi()["paths"]
    text = "\n".join(
        answer["description"]
        for operations in paths.values()
        for operation in operations.values()
        for status, answer in operation["responses"].items()
    )
    given = [kind for kind in kinds() if is_given(kind)]
    assert len(given) > 40
    missing = [
        kind.__name__ for kind in given if f"`{kind.code or kind.type}`: {kind.__doc__}" not in text
    ]
    assert not missing
