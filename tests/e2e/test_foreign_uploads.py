"""An upload of another tenant is answered as one that does not exist."""

from __future__ import annotations

from contextlib import closing
from typing import Any, ClassVar

from tests.api.test_foreign_ids import GONE, Things, gateway
from tests.harness.fleet import Process

__all__ = ["gateway"]


class FurtherThings(Things):
    bodies: ClassVar[dict[str, dict[str, Any]]] = {
        "/v1/uploads/{upload_id}/complete": {"json": {"part_ids": ["part_1"]}},
        "/v1/uploads/{upload_id}/parts": {"files": {"data": b"x"}},
    }

    def made(self) -> dict[str, str]:
        upload = {"filename": "f", "purpose": "batch", "bytes": 10, "mime_type": "text/plain"}
        return {"upload_id": self.post("/v1/uploads", json=upload)["id"]}


def test_another_tenants_id_is_answered_as_an_unknown_one(gateway: Process) -> None:
    things = FurtherThings(gateway)
    with closing(things.team), closing(things.other):
        routes = [each for each in things.routes() if each[1].startswith(GONE)]
        assert len(routes) >= 3
        assert things.told_apart(routes) == {}
