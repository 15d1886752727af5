"""The schema of forgotten models in the API's description, by name."""

from __future__ import annotations

from gateway.description.schema import TEXT, Schema, obj

ADMIN_SCHEMAS: dict[str, Schema] = {
    "ForgottenModel": obj(
        "id object deleted", id=TEXT, object={"const": "model"}, deleted={"const": True}
    ),
}
