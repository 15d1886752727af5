"""The bodies of the webhook routes, and what is refused in them."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gateway.http.wrong_fields import wrong_field
from shared.webhooks.webhook_endpoint import EVENT_TYPES


def _known(names: list[str] | None) -> list[str] | None:
    for name in names or ():
        if name not in EVENT_TYPES:
            raise ValueError(f"{name[:64]!r} is none of {', '.join(EVENT_TYPES)}")
    return None if names is None else list(dict.fromkeys(names))


Name = Annotated[str, Field(min_length=1, max_length=256)]
Types = Annotated[list[str], Field(min_length=1, max_length=64)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Self:
        """Check the fields of a body. Raises BadRequest."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise wrong_field(error) from error


class WebhookCreate(_Body):
    """A new endpoint."""

    name: Name
    url: str
    """https, of a public address; see `FLOTILLA_WEBHOOK_ALLOW` for others."""
    event_types: Types
    """Those of `GET /v1/webhook_event_types`."""

    _check_types = field_validator("event_types")(_known)


class WebhookUpdate(_Body):
    """What is to be changed of an endpoint."""

    name: Name | None = None
    url: str | None = None
    """A new one has events sent again to an endpoint that was disabled."""
    event_types: Types | None = None

    _check_types = field_validator("event_types")(_known)


class WebhookRotation(_Body):
    """How a secret is replaced."""

    keep_old_secret_active_for_24_hours: bool = False
    """Events are signed with both meanwhile."""


class WebhookTest(_Body):
    """A test event."""

    event_type: str

    @field_validator("event_type")
    @classmethod
    def _check_type(cls, name: str) -> str:
        _known([name])
        return name
