"""When deliveries are tried again, and how they are signed."""

from __future__ import annotations

import base64
import json
import time

import pytest
from openai import InvalidWebhookSignatureError, OpenAI

from shared.webhooks.retry_schedule import DELAYS_S, LIFETIME_S, next_delay_s
from shared.webhooks.webhook_signature import new_secret, signed_headers


@pytest.mark.parametrize("random", [0.0, 0.5, 1.0])
def test_tries_spread_over_72_hours(random: float) -> None:
    age_s, tries = 0.0, 1
    while (delay_s := next_delay_s(tries, age_s, random)) is not None:
        age_s, tries = age_s + delay_s, tries + 1
    assert tries == len(DELAYS_S) + 1
    assert 64 * 3600 < age_s < LIFETIME_S


def test_jitter_makes_a_difference() -> None:
    assert next_delay_s(3, 0, 0.0) == 300
    assert next_delay_s(3, 0, 1.0) == 270


def test_a_receiver_may_ask_for_more_time_but_not_for_more_than_a_day() -> None:
    assert next_delay_s(1, 0, 0.0, retry_after_s=120) == 120
    assert next_delay_s(4, 0, 0.0, retry_after_s=120) == 1800
    assert next_delay_s(1, 0, 0.0, retry_after_s=1e9) == 86_400


def test_there_is_an_end() -> None:
    assert next_delay_s(len(DELAYS_S) + 1, 0, 0.5) is None
    assert next_delay_s(2, LIFETIME_S - 30, 0.5) is None
    assert next_delay_s(1, LIFETIME_S - 30, 0.5) is not None
    assert next_delay_s(1, LIFETIME_S - 30, 0.5, retry_after_s=60) is None


def test_openais_sdk_takes_the_signature() -> None:
    body = json.dumps({
        "id": "evt_1", "object": "event", "created_at": 1, "type": "batch.completed",
        "data": {"id": "batch_1"},
    }).encode()  # fmt: skip
    old, new, other = new_secret(), new_secret(), new_secret()
    assert old != new
    assert len(base64.b64decode(new.removeprefix("whsec_"))) == 32
    headers = signed_headers("wh_1", time.time(), body, (new, old))
    client = OpenAI(api_key="x")
    for secret in (new, old):
        event = client.webhooks.unwrap(body, headers, secret=secret)
        assert event.data.id == "batch_1"
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.unwrap(body, headers, secret=other)
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.unwrap(body + b" ", headers, secret=new)
