"""API keys as the API shows them, and the bodies that make them. Times are Unix seconds."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.core.limits_object import LimitsObject, UsedObject, limits_object
from gateway.http.wrong_fields import wrong_field
from shared.tenants.api_key import ApiKey
from shared.tenants.scopes import TENANT_SCOPES, Scope

M = TypeVar("M", bound=BaseModel)

TENANT = r"^[A-Za-z0-9_.-]{1,64}$"
_MOST_MODELS = 100
ModelName = Annotated[str, Field(min_length=1, max_length=256)]


class NewLimits(LimitsObject):
    """In place of all that were there before."""

    reason: str = Field("", max_length=500)
    """For the audit log."""

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Self:
        """Check the fields of a body. Raises BadRequest."""
        return checked(cls, fields)


class TenantLimits(BaseModel):
    """The limits of all keys of a tenant together."""

    object: Literal["tenant_limits"] = "tenant_limits"
    tenant: str
    limits: LimitsObject


def checked(kind: type[M], fields: dict[str, Any]) -> M:
    """The fields of a body as this model. Raises BadRequest."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise wrong_field(error) from error


class KeyCreate(BaseModel):
    """A new key."""

    model_config = ConfigDict(extra="forbid")

    tenant: str = Field(pattern=TENANT)
    name: str = Field("", max_length=64)
    """For people."""
    scopes: list[Scope] = Field(sorted(TENANT_SCOPES), min_length=1)
    models: list[ModelName] = Field([], max_length=_MOST_MODELS)
    """The names of models that it may use; empty: any."""
    expires_at: float | None = None
    """Null: never."""
    limits: LimitsObject = LimitsObject()
    reason: str = Field("", max_length=500)
    """For the audit log."""

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Self:
        """Check the fields of a body. Raises BadRequest."""
        return checked(cls, fields)


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
    limits: LimitsObject

    @classmethod
    def of(cls, key: ApiKey) -> Self:
        """A key in the API's form."""
        return cls(**_shown(key))


class KeyWithSecret(KeyObject):
    """What only `create` and `rotate` answer: the secret is shown once."""

    secret: str

    @classmethod
    def made(cls, key: ApiKey, secret: str) -> Self:
        """A key in the API's form."""
        return cls(**_shown(key), secret=secret)


def _shown(key: ApiKey) -> dict[str, Any]:
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
        "limits": limits_object(key.limits),
    }


class ListedKey(KeyObject):
    """A key, and what it has used of its budgets."""

    used: UsedObject

    @classmethod
    def with_use(cls, key: ApiKey, used: UsedObject) -> Self:
        """A key in the API's form."""
        return cls(**_shown(key), used=used)


class KeyObjectList(BaseModel):
    """A page of keys, newest first."""

    object: Literal["list"] = "list"
    data: list[ListedKey]
    has_more: bool


class KeyRevoked(BaseModel):
    """A key that is refused from now on."""

    id: str
    object: Literal["api_key.revoked"] = "api_key.revoked"
    revoked: Literal[True] = True
