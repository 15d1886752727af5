"""One try to deliver an event, to receivers of all kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.webhooks import webhook_sender
from gateway.webhooks.checked_network import Resolver, check_url
from gateway.webhooks.webhook_sender import WebhookSender
from shared.job.errors import WebhookUrlRefused
from shared.webhooks.address_check import AllowedAddresses, Target
from tests.harness.receivers import (
    Answer,
    answers,
    closes,
    drips,
    floods,
    hangs,
    receiver,
    self_signed,
    speaks_no_http,
    streams,
)

LOOPBACK = AllowedAddresses.of(("127.0.0.0/8", "::1"))


@pytest_asyncio.fixture
async def sender() -> AsyncIterator[WebhookSender]:
    made = WebhookSender(LOOPBACK)
    yield made
    made.close()


async def test_an_event_arrives(sender: WebhookSender) -> None:
    async with receiver(answers(204)) as there:
        outcome = await sender.post(f"{there.url}?a=b", {"webhook-id": "wh_1"}, b'{"id":1}')
    assert outcome.delivered
    assert outcome.status == 204
    (call,) = there.calls
    assert call.head == "POST /hook?a=b HTTP/1.1"
    assert call.body == b'{"id":1}'
    assert call.headers["webhook-id"] == "wh_1"
    assert call.headers["content-type"] == "application/json"
    assert call.headers["host"] == there.url.split("/")[2]


@pytest.mark.parametrize("status", [199, 301, 302, 307, 308, 400, 404, 410, 429, 500, 503])
async def test_any_other_status_is_a_failure(sender: WebhookSender, status: int) -> None:
    async with (
        receiver(answers(200)) as elsewhere,
        receiver(answers(status, f"location: {elsewhere.url}")) as there,
    ):
        outcome = await sender.post(there.url, {}, b"{}")
    assert not outcome.delivered
    assert outcome.status == status or status == 199  # which httpcore takes for a preliminary one
    assert not elsewhere.calls


@pytest.mark.parametrize("bad", [hangs, drips, floods, speaks_no_http, closes])
async def test_a_receiver_without_an_answer_is_a_failure(
    sender: WebhookSender, bad: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_sender, "TIMEOUT_S", 0.3)
    async with receiver(bad) as there:
        outcome = await sender.post(there.url, {}, b"{}")
    assert not outcome.delivered
    assert outcome.status == 0
    assert outcome.error
    if bad is hangs:
        assert outcome.error == "no answer within 0.3 s"
        assert outcome.duration_ms >= 290


async def test_an_endless_body_is_not_read(sender: WebhookSender) -> None:
    async with receiver(streams) as there:
        outcome = await sender.post(there.url, {}, b"{}")
    assert outcome.delivered


async def test_a_port_that_nobody_listens_on(sender: WebhookSender) -> None:
    async with receiver(answers(200)) as there:
        pass
    outcome = await sender.post(there.url, {}, b"{}")
    assert outcome.error.startswith("no connection")


async def test_a_certificate_that_nobody_trusts(sender: WebhookSender, tmp_path: Path) -> None:
    async with receiver(answers(200), tls=self_signed(tmp_path)) as there:
        outcome = await sender.post(there.url, {}, b"{}")
        named = await sender.post(there.url.replace("127.0.0.1", "localhost"), {}, b"{}")
    assert "certificate" in outcome.error.lower()
    assert "certificate" in named.error.lower()
    assert not there.calls


@pytest.mark.parametrize(
    ("header", "least_s", "most_s"),
    [
        ("retry-after: 120", 120, 120),
        ("Retry-After: Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("retry-after: Fri, 31 Dec 2100 23:59:59 GMT", 1e9, 1e10),
        ("retry-after: soon", 0, 0),
        ("retry-after: -5", 0, 0),
        ("x: y", 0, 0),
    ],
)
async def test_a_receiver_says_when_it_wants_to_be_called_again(
    sender: WebhookSender, header: str, least_s: float, most_s: float
) -> None:
    async with receiver(answers(429, header)) as there:
        outcome = await sender.post(there.url, {}, b"{}")
    assert least_s <= outcome.retry_after_s <= most_s


class ChangedNames(Resolver):
    """A name server that answers differently each time."""

    def __init__(self, *replies: list[str]) -> None:
        super().__init__()
        self._replies = list(replies)

    async def addresses(self, target: Target) -> list[str]:
        return self._replies.pop(0)


async def test_a_name_whose_address_changes_behind_the_check_reaches_nobody() -> None:
    nobody = AllowedAddresses()
    sender = WebhookSender(nobody)
    async with receiver(answers(200)) as there:
        url = there.url.replace("http://127.0.0.1", "https://example.com")
        sender.resolver = ChangedNames(["8.8.8.8"], ["127.0.0.1"])
        await check_url(url, nobody, sender.resolver)
        outcome = await sender.post(url, {}, b"{}")
    assert outcome.error.startswith("refused")
    assert not there.calls


async def test_the_address_that_was_checked_is_the_one_that_is_called() -> None:
    """One look-up for each call: a second one might have another answer."""
    sender = WebhookSender(AllowedAddresses.of(("127.0.0.0/8",)))
    async with receiver(answers(200)) as there:
        sender.resolver = ChangedNames(["127.0.0.1"])
        url = there.url.replace("127.0.0.1", "example.com")
        assert (await sender.post(url, {}, b"{}")).delivered


HOSTS_INSIDE = [
    "127.0.0.1", "127.1", "0x7f.1", "0x7f000001", "2130706433", "0177.0.0.1", "017700000001",
    "localhost", "localhost.", "LOCALHOST", "0.0.0.0", "0", "127.127.127.127", "[::1]", "[::]",
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:127.0.0.1]", "[::127.0.0.1]",
    "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "a@127.0.0.1", "127.0.0.1.", "[fe80::1%25lo]",
    "127.0.0.1%2f", "ip6-localhost",
]  # fmt: skip


async def test_no_form_of_an_address_reaches_loopback() -> None:
    sender = WebhookSender(AllowedAddresses())
    async with receiver(answers(200), "0.0.0.0") as there, receiver(answers(200), "::1") as there6:
        ports = [each.url.rsplit(":")[-1].split("/")[0] for each in (there, there6)]
        for scheme, host, port in product(("http", "https"), HOSTS_INSIDE, ports):
            url = f"{scheme}://{host}:{port}/"
            with pytest.raises(WebhookUrlRefused):
                await check_url(url, sender.allowed, sender.resolver)
            outcome = await sender.post(url, {}, b"{}")
            assert outcome.error.startswith(("refused", "no connection")), url
    assert not there.calls
    assert not there6.calls
    sender.close()


async def test_only_what_is_named_is_allowed() -> None:
    sender = WebhookSender(AllowedAddresses.of(("127.0.0.1",)))
    async with (
        receiver(answers(200), "127.0.0.1") as there,
        receiver(answers(200), "127.0.0.2") as no,
    ):
        assert (await sender.post(there.url, {}, b"{}")).delivered
        assert (await sender.post(no.url, {}, b"{}")).error.startswith("refused")
    assert not no.calls
    sender.close()
