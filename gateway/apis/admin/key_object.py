"""API keys as the API shows them, and the bodies that make them. Times are Unix seconds."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.job.errors import BadRequest
from shared.tenants.api_key import ApiKey
from shared.tenants.peppers import Peppers
from shared.tenants.scopes import TENANT_SCOPES, Scope

_TENANT = r"^[A-Za-z0-9_.-]{1,64}$"
_MOST_MODELS = 100
ModelName = Annotated[str, Field(min_length=1, max_length=256)]


class KeyCreate(BaseModel):
    """A new key."""

    model_config = ConfigDict(extra="forbid")

    tenant: str = Field(pattern=_TENANT)
    name: str = Field("", max_length=64)
    """For people."""
    scopes: list[Scope] = Field(sorted(TENANT_SCOPES), min_length=1)
    models: list[ModelName] = Field([], max_length=_MOST_MODELS)
    """The names of models that it may use; empty: any."""
    expires_at: float | None = None
    """Null: never."""
    reason: str = Field("", max_length=500)
    """For the audit log."""

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Self:
        """Check the fields of a body. Raises BadRequest."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            param = ".".join(str(name) for name in first["loc"])[:200]
            raise BadRequest(f"{param}: {first['msg']}", param or None) from error


class KeyObject(BaseModel):
    """A key without its secret."""

    id: str
    object: Literal["api_key"] = "api_key"
    name: str
    tenant: str
    scopes: list[Scope]
    models: list[str]
    hint: str
    """The first characters of its secret."""
    created_at: int
    created_by: str
    """The tenant of the operator's key that made it."""
    expires_at: float | None
    pepper: Literal["current", "old", "unknown"]
    """The gateway's pepper that its digest is made with; with an unknown one it is refused."""

    @classmethod
    def of(cls, key: ApiKey, peppers: Peppers) -> Self:
        """A key in the API's form."""
        return cls(**_shown(key, peppers))


class KeyWithSecret(KeyObject):
    """What only `create` and `rotate` answer: the secret is shown once."""

    secret: str

    @classmethod
    def made(cls, key: ApiKey, peppers: Peppers, secret: str) -> Self:
        """A key in the API's form."""
        return cls(**_shown(key, peppers), secret=secret)


def _shown(key: ApiKey, peppers: Peppers) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "tenant": key.tenant,
        "scopes": sorted(key.scopes),
        "models": list(key.models),
        "hint": key.hint,
        "created_at": int(key.created_at),
        "created_by": key.created_by,
        "expires_at": key.expires_at,
        "pepper": _which(key.pepper, peppers.names),
    }


def _which(name: str, names: list[str]) -> str:
    if name not in names:
        return "unknown"
    return "current" if name == names[0] else "old"


class KeyObjectList(BaseModel):
    """A page of keys, newest first."""

    object: Literal["list"] = "list"
    data: list[KeyObject]
    has_more: bool


class KeyRevoked(BaseModel):
    """A key that is refused from now on."""

    id: str
    object: Literal["api_key.revoked"] = "api_key.revoked"
    revoked: Literal[True] = True
