"""The URL of a Redis Cluster."""

from __future__ import annotations

import pytest

from shared.platform.cluster_url import is_cluster, parse
from tests.harness.settings import Settings

URL = "redis+cluster://u:p%40ss@a:7000,b,[::1]:5"


def test_the_parts_of_a_url() -> None:
    assert is_cluster(URL)
    assert not is_cluster("redis://a")
    parts = parse(URL)
    assert parts.nodes == (("a", 7000), ("b", 6379), ("::1", 5))
    assert (parts.username, parts.password, parts.tls) == ("u", "p@ss", False)
    assert parts.name == "a:7000,b:6379,::1:5"
    secure = parse("rediss+cluster://a?ssl_ca_certs=/ca.pem")
    assert secure.tls
    assert secure.options == {"ssl_ca_certs": "/ca.pem"}


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis+cluster://", "HOST:PORT"),
        ("redis+cluster://u:secret@", "HOST:PORT"),
        ("redis+cluster://a:x", "HOST:PORT"),
        ("redis+cluster://a,,b", "HOST:PORT"),
        ("redis+cluster://u:secret@a/1", "no databases"),
        ("redis+cluster://a?colour=red", "no option 'colour'"),
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        parse(url)
    assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match=words):
        Settings(redis_url=url)
