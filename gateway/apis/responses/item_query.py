"""The query parameters of calls that answer with items of responses and conversations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Query
from starlette.responses import Response


@dataclass(frozen=True, slots=True)
class Included:
    """OpenAI's `include`, which clients spell in two ways: accepted, but it has no effect."""

    include: Annotated[list[str] | None, Query()] = None
    include_list: Annotated[list[str] | None, Query(alias="include[]")] = None


@dataclass(frozen=True, slots=True)
class ItemQuery(Included):
    """The page of a list of items that a request selects."""

    after: Annotated[str, Query(max_length=128)] = ""
    limit: Annotated[int, Query(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"

    @property
    def descending(self) -> bool:
        """The newest item first."""
        return self.order == "desc"


def json_answer(body: bytes) -> Response:
    """The answer with items, which are JSON already."""
    return Response(body, media_type="application/json")


IncludedDep = Annotated[Included, Depends()]
ItemQueryDep = Annotated[ItemQuery, Depends()]
