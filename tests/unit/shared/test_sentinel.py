"""The URL of a Redis behind Sentinel."""

from __future__ import annotations

import pytest

from gateway.maintenance.broker import broker, celery_redis_url
from shared.platform.sentinel_url import is_sentinel, parse
from shared.store.redis.redis_client import connect, server_name
from tests.harness.settings import Settings

URL = "redis+sentinel://u:p%40ss@a:26379,b,[::1]:5/jobs/3?sentinel_password=quiet"


def test_the_parts_of_a_url() -> None:
    parts = parse(URL)
    assert parts.sentinels == (("a", 26379), ("b", 26379), ("::1", 5))
    assert (parts.service, parts.db, parts.username, parts.password) == ("jobs", 3, "u", "p@ss")
    assert not parts.tls
    assert parse(URL.replace("redis+", "rediss+")).tls
    assert parse("redis+sentinel://a/jobs").db == 0


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis+sentinel://secret@a:1", "SERVICE/DB"),
        ("redis+sentinel:///jobs", "SERVICE/DB"),
        ("redis+sentinel://a:x/jobs", "HOST:PORT"),
        ("redis+sentinel://a,,b/jobs", "HOST:PORT"),
        ("redis+sentinel://a/jobs/one", "not a number"),
        ("redis+sentinel://a/jobs?colour=red", "no option 'colour'"),
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        parse(url)
    assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match=words):
        Settings(redis_url=url)


async def test_clients_are_named_without_their_password() -> None:
    assert is_sentinel(URL)
    assert not is_sentinel("redis://a")
    redis = connect(URL)
    assert server_name(redis) == "jobs@a:26379,b:26379,::1:5/3"
    await redis.aclose(close_connection_pool=True)


def test_celery_gets_the_next_database_of_the_same_master() -> None:
    settings = Settings(redis_url=URL)
    assert parse(celery_redis_url(settings)) == parse(URL)._replace(db=4)
    where = broker(settings)
    assert where.url.split(";")[0] == "sentinel://u:p%40ss@a:26379/4"
    assert where.transport_options == {
        "master_name": "jobs",
        "sentinel_kwargs": {"password": "quiet"},
    }
    assert where.ssl is None
