"""Which URLs and addresses a webhook may call: public ones, and those that the operator allows."""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from shared.job.errors import WebhookUrlRefused

Address = IPv4Address | IPv6Address
MOST_URL_CHARACTERS = 2048
_TEXT = re.compile(r"[!-~]+")
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*\.?")
_NUMBER = re.compile(r"([0-9]+|0x[0-9a-f]*)\.?")
_GLOBAL_V6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_NOT_PUBLIC = (
    # What `is_global` takes for public in some releases of Python: 6to4 and Teredo (one of the
    # protocol assignments), which reach IPv4 addresses, and documentation.
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),
    IPv6Network("2002::/16"),
    IPv6Network("2001::/23"),
    IPv6Network("2001:db8::/32"),
    IPv6Network("3fff::/20"),
)


def unwrapped(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for (mapped, or by NAT64), else itself."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public(address: Address) -> bool:
    """Whether it is an address of the internet that belongs to one machine."""
    real = unwrapped(address)
    if isinstance(real, IPv6Address) and real not in _GLOBAL_V6:
        return False
    return real.is_global and not real.is_multicast and not any(real in net for net in _NOT_PUBLIC)


class Target(NamedTuple):
    """What a URL calls."""

    scheme: str
    host: str
    """A name in lower case without a dot at its end, or an address."""
    port: int


class AllowedAddresses:
    """Public addresses by https, and what FLOTILLA_WEBHOOK_ALLOW names, by http, too."""

    def __init__(
        self, hosts: Collection[str] = (), networks: Collection[IPv4Network | IPv6Network] = ()
    ) -> None:
        self._hosts = frozenset(hosts)
        self._networks = tuple(networks)

    @classmethod
    def of(cls, words: Collection[str]) -> Self:
        """From the words of the setting: hosts and networks. Raises ValueError."""
        hosts, networks = [], []
        for word in (each.lower() for each in words):
            try:
                networks.append(ip_network(word))
            except ValueError as error:
                host = word.rstrip(".")
                if "/" in word or not _NAME.fullmatch(host) or _ends_in_number(host):
                    raise ValueError(f"{word!r} is neither a host nor a network") from error
                hosts.append(host)
        return cls(hosts, networks)

    def target(self, url: str) -> Target:
        """What a URL calls. Raises WebhookUrlRefused if no address would do."""
        if len(url) > MOST_URL_CHARACTERS:
            raise WebhookUrlRefused(f"`url` has more than {MOST_URL_CHARACTERS} characters.")
        if not _TEXT.fullmatch(url) or "\\" in url:
            raise WebhookUrlRefused("`url` has a character that is to be written as %XX.")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise WebhookUrlRefused(f"`url` is no URL: {error}.") from error
        if parts.scheme not in ("https", "http"):
            raise WebhookUrlRefused("`url` must begin with https://.")
        if "@" in parts.netloc:
            raise WebhookUrlRefused("`url` must not contain a user or a password.")
        if "#" in url:
            raise WebhookUrlRefused("`url` must not have a fragment (`#...`).")
        host = _host_of(parts.hostname or "", in_brackets="[" in parts.netloc)
        if port == 0:
            raise WebhookUrlRefused("`url` has the port 0.")
        if parts.scheme == "http" and not self._may_be_plain(host):
            raise WebhookUrlRefused("`url` must begin with https://.")
        return Target(parts.scheme, host, port or (443 if parts.scheme == "https" else 80))

    def check(self, target: Target, addresses: Collection[str]) -> None:
        """Check all addresses of a target's host. Raises WebhookUrlRefused."""
        if target.host in self._hosts:
            return
        for text in addresses:
            address = ip_address(text)
            if self._is_in_network(address):
                continue
            if target.scheme != "https":
                raise WebhookUrlRefused("`url` must begin with https://.")
            if not is_public(address):
                raise WebhookUrlRefused(f"{target.host!r} has an address that is not public.")

    def _may_be_plain(self, host: str) -> bool:
        """Whether http may do: the addresses are checked later."""
        return bool(self._networks) or host in self._hosts

    def _is_in_network(self, address: Address) -> bool:
        real = unwrapped(address)
        return any(real in network for network in self._networks)


def _host_of(host: str, *, in_brackets: bool) -> str:
    """The host of a URL, as it is looked up. Raises WebhookUrlRefused."""
    if in_brackets:
        try:
            if "%" in host:
                raise ValueError("an interface of this machine")
            return str(IPv6Address(host))
        except ValueError as error:
            raise WebhookUrlRefused("`url` has no valid address in its brackets.") from error
    if len(host) > 253 or not _NAME.fullmatch(host):
        raise WebhookUrlRefused("`url` has no valid host; write a name with other letters as xn--.")
    host = host.rstrip(".")
    if _ends_in_number(host):
        try:
            return str(IPv4Address(host))
        except ValueError as error:
            raise WebhookUrlRefused(
                "`url` has an address that is not written as 1.2.3.4."
            ) from error
    return host


def _ends_in_number(host: str) -> bool:
    """Whether browsers and resolvers take this for an IPv4 address, in one of its forms."""
    return _NUMBER.fullmatch(host.rpartition(".")[2]) is not None
