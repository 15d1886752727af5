"""The URL of one Redis, of one behind Sentinel, and of a cluster."""

from __future__ import annotations

import pytest

from gateway.maintenance.broker import broker, celery_redis_url
from shared.platform.redis_url import CLUSTER, ONE, SENTINEL, UNIX, is_cluster, parse
from shared.store.servers import connect
from tests.harness.settings import Settings

SENTINELS = "redis+sentinel://u:p%40ss@a:26379,b,[::1]:5/jobs/3?sentinel_password=quiet"


@pytest.mark.parametrize(
    ("url", "kind", "name", "login"),
    [
        ("redis://10.0.0.5:6380/2", ONE, "10.0.0.5:6380/2", ("", "")),
        ("redis://", ONE, "localhost:6379/0", ("", "")),
        ("rediss://user:s3cret@10.0.0.5", ONE, "10.0.0.5:6379/0", ("user", "s3cret")),
        ("redis://a?db=7&password=s3cret", ONE, "a:6379/7", ("", "s3cret")),
        ("unix://:s3cret@/run/redis.sock?db=1", UNIX, "/run/redis.sock/1", ("", "s3cret")),
        (SENTINELS, SENTINEL, "jobs@a:26379,b:26379,::1:5/3", ("u", "p@ss")),
        ("redis+sentinel://a/jobs", SENTINEL, "jobs@a:26379/0", ("", "")),
        ("redis+cluster://u:p%40ss@a:7000,b", CLUSTER, "a:7000,b:6379", ("u", "p@ss")),
    ],
)
def test_the_parts_of_a_url(url: str, kind: str, name: str, login: tuple[str, str]) -> None:
    parts = parse(url)
    assert (parts.kind, parts.name, parts.username, parts.password) == (kind, name, *login)
    assert parts.tls == url.startswith("rediss")
    assert is_cluster(url) == (kind == CLUSTER)
    assert connect(url).name.startswith(name)


def test_the_options_of_a_url() -> None:
    assert parse(SENTINELS).options == {"sentinel_password": "quiet"}
    secure = parse("rediss+cluster://a?ssl_ca_certs=/ca.pem")
    assert secure.tls
    assert secure.options == {"ssl_ca_certs": "/ca.pem"}


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://secret@a", "must start with"),
        ("redis://a:secret", "HOST:PORT"),
        ("redis://a/one", "not a number"),
        ("redis://u:se[cret@a", "percent-encoded"),
        ("redis://a?colour=red", "no option 'colour'"),
        ("redis+sentinel://secret@a:1", "SERVICE/DB"),
        ("redis+sentinel:///jobs", "HOST:PORT"),
        ("redis+sentinel://a,,b/jobs", "HOST:PORT"),
        ("redis+sentinel://a/jobs/one", "not a number"),
        ("redis+cluster://u:secret@", "HOST:PORT"),
        ("redis+cluster://a:x", "HOST:PORT"),
        ("redis+cluster://u:secret@a/1", "no databases"),
        ("redis+cluster://a?sentinel_password=secret", "no option 'sentinel_password'"),
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        parse(url)
    assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match=words):
        Settings(redis_url=url)


def test_celery_gets_the_next_database_of_the_same_master() -> None:
    settings = Settings(redis_url=SENTINELS)
    assert parse(celery_redis_url(settings)) == parse(SENTINELS)._replace(db=4)
    where = broker(settings)
    assert where.url.split(";")[0] == "sentinel://u:p%40ss@a:26379/4"
    assert where.transport_options == {
        "master_name": "jobs",
        "sentinel_kwargs": {"password": "quiet"},
    }
    assert where.ssl is None
