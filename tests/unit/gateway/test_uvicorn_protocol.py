"""A gateway does not start with a uvicorn whose protocol is not as connection.py expects."""

from __future__ import annotations

from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.http import uvicorn_protocol
from gateway.http.connection import Connection
from gateway.http.uvicorn_protocol import METHODS, problem, refuse_unknown_protocol
from shared.platform.settings import SettingsError


class OtherParameters(HttpToolsProtocol):
    def on_body(self, body: bytes, more: bool = False) -> None: ...


class MethodMissing(HttpToolsProtocol):
    send_400_response = None  # type: ignore[assignment]


class AttributesMissing(HttpToolsProtocol):
    def __init__(self) -> None:
        self.transport = None  # type: ignore[assignment]


class CycleChanged:
    def __init__(self) -> None:
        self.body = self.disconnected = self.keep_alive = self.response_complete = None


def test_the_installed_uvicorn_can_be_used() -> None:
    assert problem() == ""
    refuse_unknown_protocol()


@pytest.mark.parametrize(
    ("protocol", "cycle", "reason"),
    [
        (OtherParameters, RequestResponseCycle, "on_body takes (self body more), expected"),
        (MethodMissing, RequestResponseCycle, "MethodMissing has no send_400_response"),
        (AttributesMissing, RequestResponseCycle, "AttributesMissing has no app_state, client"),
        (HttpToolsProtocol, CycleChanged, "CycleChanged has no message_event"),
    ],
)
def test_a_changed_uvicorn_is_found(protocol: type[Any], cycle: type[Any], reason: str) -> None:
    assert reason in problem(protocol, cycle)


def test_a_gateway_refuses_to_start_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_protocol, "problem", lambda: "a method is missing")
    with pytest.raises(SettingsError, match=r"uvicorn [\d.]+ can't be used.*a method is missing"):
        refuse_unknown_protocol()


def test_every_method_that_a_connection_overrides_is_checked() -> None:
    overridden = {name for name, value in vars(Connection).items() if callable(value)} & {
        name for name in dir(HttpToolsProtocol) if not name.startswith("__")
    }
    assert overridden <= set(METHODS)
