"""The query parameters of calls that answer with items of responses and conversations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Depends, Query

from gateway.jobs import response_items
from gateway.jobs.response_items import Item


@dataclass(frozen=True, slots=True)
class Included:
    """OpenAI's `include`, which clients spell in two ways: accepted, and without effect."""

    include: Annotated[list[str] | None, Query()] = None
    include_list: Annotated[list[str] | None, Query(alias="include[]")] = None


@dataclass(frozen=True, slots=True)
class ItemQuery(Included):
    """Which page of a list of items is wanted."""

    after: Annotated[str, Query(max_length=128)] = ""
    limit: Annotated[int, Query(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"

    def page(self, items: Sequence[Item]) -> dict[str, Any]:
        """The page of these items. Raises NotFound if `after` is not among them."""
        return response_items.page(
            items, after=self.after, limit=self.limit, descending=self.order == "desc"
        )


IncludedDep = Annotated[Included, Depends()]
ItemQueryDep = Annotated[ItemQuery, Depends()]
