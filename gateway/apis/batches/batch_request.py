"""The body of `POST /v1/batches`, and what is refused in it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.http.wrong_fields import sent, wrong_field
from shared.api.endpoint import BodyKind
from shared.api.endpoints import ENDPOINTS
from shared.job.errors import BadRequest
from shared.webhooks.webhook_endpoint import MOST_ENDPOINTS

ENDPOINT_PATHS = [row.path for row in ENDPOINTS.values() if row.body is BodyKind.JSON]
"""A form can't be a member of a line."""
_WINDOW = re.compile(r"([1-9][0-9]{0,3})([hd])")
_HOUR_S, _DAY_S = 3600, 86_400
_MAX_WINDOW_S = 30 * _DAY_S


class OutputExpiry(BaseModel):
    """When the output files expire."""

    model_config = ConfigDict(extra="forbid", strict=True)

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=_HOUR_S, le=30 * _DAY_S)]
    """From the creation of the file on."""


class BatchRequest(BaseModel):
    """A new batch."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input_file_id: Annotated[str, Field(min_length=1, max_length=100)]
    endpoint: str
    completion_window: str
    """`1h` to `30d`: lines that have not ended then are given up."""
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
            Field(max_length=16),
        ]
        | None
    ) = None
    output_expires_after: OutputExpiry | None = None
    webhooks: Annotated[list[str], Field(max_length=MOST_ENDPOINTS)] = Field(default_factory=list)
    """Ids of endpoints that its end is told to; without any, all that have subscribed to it."""

    @property
    def window_s(self) -> float:
        """The completion window in seconds. Raises BadRequest."""
        found = _WINDOW.fullmatch(self.completion_window)
        seconds = int(found[1]) * (_HOUR_S if found[2] == "h" else _DAY_S) if found else 0
        if not 0 < seconds <= _MAX_WINDOW_S:
            raise BadRequest(
                "`completion_window` is a number of hours or days from `1h` to `30d`.",
                "completion_window",
            )
        return float(seconds)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Self:
        """Check the fields of a body. Raises BadRequest."""
        try:
            request = cls.model_validate(fields)
        except ValidationError as error:
            raise wrong_field(error) from error
        if request.endpoint not in ENDPOINT_PATHS:
            known = ", ".join(ENDPOINT_PATHS)
            raise BadRequest(
                f"`endpoint` must be one of {known}, not {sent(request.endpoint)}.", "endpoint"
            )
        return request


def request_schema() -> dict[str, Any]:
    """The schema of the body; that of `OutputExpiry` has its own place in the description."""
    schema = BatchRequest.model_json_schema(ref_template="#/components/schemas/{model}")
    del schema["$defs"]
    return schema
