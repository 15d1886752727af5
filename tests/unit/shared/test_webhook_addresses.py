"""Which URLs and addresses a webhook may call."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from shared.job.errors import WebhookUrlRefused
from shared.webhooks.address_check import AllowedAddresses, is_public

INSIDE = [
    "0.0.0.0", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.169.254",
    "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.1.1",
    "198.18.0.1", "203.0.113.7", "224.0.0.1", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808",
    "100::1", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:db8::1",
    "2002:7f00:1::", "2002:a00:1::1", "2002:808:808::1", "3fff::1", "5f00::1",
    "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1",
]  # fmt: skip
OUTSIDE = [
    "8.8.8.8",
    "1.1.1.1",
    "2606:4700:4700::1111",
    "2a00:1450:4001:81b::200e",
    "64:ff9b::808:808",
    "::ffff:8.8.8.8",
]


@pytest.mark.parametrize("address", INSIDE)
def test_an_address_inside_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", OUTSIDE)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        "", "https://", "https:///x", "http://example.com/", "ftp://example.com/", "file:///etc/passwd",
        "//example.com/", "example.com", "https:example.com", "https://user:password@example.com/",
        "https://user@example.com/", "https://example.com@127.0.0.1/", "https://@example.com/",
        "https://example.com/#part", "https://example.com:0/", "https://example.com:66000/",
        "https://example.com:x/", "https://exa mple.com/", "https://example.com/a b",
        "https://example.com\\@127.0.0.1/", "https://example.com/\n", "https://exämple.com/",
        "https://0x7f.1/", "https://0x7f000001/", "https://2130706433/", "https://0177.0.0.1/",
        "https://127.1/", "https://0/", "https://1.2.3.4.5/", "https://0x/", "https://a.0x7f/",
        "https://256.256.256.256/", "https://127.0.0.01/", "https://[::1/", "https://[fe80::1%25lo]/",
        "https://[not]/", "https://a..b/", "https://-a/", "https://%6cocalhost/", "https://.",
        "https://" + "a" * 300 + ".com/", "https://example.com/" + "a" * 2100,
    ],
)  # fmt: skip
def test_a_url_is_refused_whatever_its_host_has_for_addresses(url: str) -> None:
    with pytest.raises(WebhookUrlRefused):
        AllowedAddresses().target(url)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://example.com", ("https", "example.com", 443)),
        ("HTTPS://Example.COM.:8443/hook?a=b%20c", ("https", "example.com", 8443)),
        ("https://a_b.example.com/", ("https", "a_b.example.com", 443)),
        ("https://8.8.8.8/", ("https", "8.8.8.8", 443)),
        ("https://127.0.0.1./", ("https", "127.0.0.1", 443)),
        ("https://[::ffff:127.0.0.1]:99/", ("https", str(ip_address("::ffff:7f00:1")), 99)),
        ("https://xn--exmple-cua.com/", ("https", "xn--exmple-cua.com", 443)),
    ],
)
def test_a_url_has_a_target(url: str, target: tuple[str, str, int]) -> None:
    assert AllowedAddresses().target(url) == target


def test_all_addresses_of_a_host_must_be_public() -> None:
    allowed = AllowedAddresses()
    target = allowed.target("https://example.com/")
    allowed.check(target, ["8.8.8.8", "2606:4700:4700::1111"])
    for inside in ("127.0.0.1", "::ffff:10.0.0.1", "fd00::1"):
        with pytest.raises(WebhookUrlRefused):
            allowed.check(target, ["8.8.8.8", inside])


def test_what_is_allowed_may_be_private_and_plain() -> None:
    allowed = AllowedAddresses.of(("Hooks.internal.", "10.1.0.0/16", "fd00::/8", "127.0.0.1"))
    allowed.check(allowed.target("http://hooks.internal:8000/"), ["192.168.0.1"])
    allowed.check(allowed.target("http://other.internal/"), ["10.1.2.3", "fd00::1"])
    allowed.check(allowed.target("https://other.internal/"), ["::ffff:10.1.2.3"])
    allowed.check(allowed.target("https://example.com/"), ["8.8.8.8"])
    for url, address in [
        ("http://example.com/", "8.8.8.8"),
        ("https://other.internal/", "10.2.0.1"),
        ("https://other.internal/", "127.0.0.2"),
        ("https://x.hooks.internal/", "192.168.0.1"),
    ]:
        with pytest.raises(WebhookUrlRefused):
            allowed.check(allowed.target(url), [address])


@pytest.mark.parametrize(
    "word", ["10.0.0.0/33", "10.1.2.3/8", "a b", "http://x/", "*.internal", "0x7f.1"]
)
def test_a_wrong_word_of_the_setting(word: str) -> None:
    with pytest.raises(ValueError, match="neither a host nor a network"):
        AllowedAddresses.of((word,))
