"""The API's description names every error of Flotilla's own."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.app import create_app
from shared.job.errors import FlotillaError
from tests.settings import Settings


def kinds(kind: type[FlotillaError] = FlotillaError) -> Iterator[type[FlotillaError]]:
    for each in kind.__subclasses__():
        yield each
        yield from kinds(each)


def test_every_error_is_in_the_description() -> None:
    paths = create_app(Settings()).fastapi.openapi()["paths"]
    text = "\n".join(
        f"{status} {answer['description']}"
        for operations in paths.values()
        for operation in operations.values()
        for status, answer in operation["responses"].items()
    )
    missing = [
        kind.__name__
        for kind in kinds()
        if f"`{kind.code or kind.type}`: {kind.__doc__}" not in text
    ]
    assert not missing
