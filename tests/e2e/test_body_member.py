"""The member `flotilla` of an endpoint's body: the same as the header for a longest wait."""

from __future__ import annotations

import httpx

from tests.api.test_overload import api, body, check_unreachable, fill, gateway, key
from tests.harness.client import CHAT

__all__ = ["api", "gateway"]


def test_the_longest_wait(api: httpx.Client) -> None:
    def ask(max_wait_s: float) -> httpx.Response:
        fields = {"flotilla": {"max_wait_s": max_wait_s}}
        return api.post(CHAT, headers=key("3"), json=body(**fields))

    assert ask(60).status_code == 200
    fill(api)
    check_unreachable(ask(0.1))
