"""Where Celery's messages are: the URL of a Redis database for redis-py and for Celery, or, where
the fleet is on a cluster and no other Redis is named, the memory of Celery's own process.

Celery has a database of its own, so that emptying it deletes no job. The prefix of its
keys names the fleet, so several fleets may share a database.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from gateway.maintenance.maintenance_settings import MaintenanceSettings
from shared.platform import redis_url
from shared.store.errors import StoreError, StoreRefused
from shared.store.servers import connect


class Broker(NamedTuple):
    """A Redis database as Celery's settings name it."""

    url: str
    """In Celery's form; contains the password."""
    ssl: dict[str, Any] | None
    """TLS options; None without TLS. Not in the URL: there, Celery would not check certificates."""
    prefix: str
    """Of all its keys."""
    transport_options: dict[str, Any]
    """Options that Celery needs beside the URL; empty without Sentinel."""


def celery_redis_url(settings: MaintenanceSettings) -> str:
    """The setting for it, else the database after the fleet's own.

    Empty if that is a cluster, which Celery can't use: messages stay in memory.
    """
    if settings.maintenance_redis_url:
        return settings.maintenance_redis_url
    fleet = redis_url.parse(settings.redis_url)
    if fleet.kind == redis_url.CLUSTER:
        return ""
    parts, db = redis_url.split_url(settings.redis_url), fleet.db + 1
    query = [(name, value) for name, value in parse_qsl(parts.query) if name != "db"]
    if fleet.kind == redis_url.UNIX:
        return f"unix://{parts.netloc}{parts.path}?{urlencode([*query, ('db', db)])}"
    path = f"/{fleet.service}/{db}" if fleet.service else f"/{db}"
    return parts._replace(path=path, query=urlencode(query), fragment="").geturl()


def broker(settings: MaintenanceSettings) -> Broker:
    """The same database for Celery.

    Of a URL's options, only the database and those of TLS are used; timeouts are set in
    celery_app.py.
    """
    url = celery_redis_url(settings)
    if not url:
        return Broker("memory://", None, "", {})
    parts = redis_url.parse(url)
    login = ""
    if parts.username or parts.password:
        login = f"{quote(parts.username, safe='')}:{quote(parts.password, safe='')}@"
    ssl: dict[str, Any] | None = None
    if parts.tls:
        ssl = {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
        ssl |= {name: parts.options[name] for name in parts.options if name.startswith("ssl_")}
        ssl["ssl_check_hostname"] = redis_url.checks_host_name(parts)
    hosts = [f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in parts.nodes]
    options: dict[str, Any] = {}
    if parts.kind == redis_url.UNIX:
        celery_url = f"redis+socket://{login}{quote(parts.path)}?virtual_host={parts.db}"
    elif parts.kind == redis_url.SENTINEL:
        celery_url = ";".join(f"sentinel://{login}{host}/{parts.db}" for host in hosts)
        login_there = {
            name.removeprefix("sentinel_"): text
            for name, text in parts.options.items()
            if name.startswith("sentinel_")
        }
        options = {"master_name": parts.service, "sentinel_kwargs": login_there}
    else:
        celery_url = f"redis://{login}{hosts[0]}/{parts.db}"
    return Broker(celery_url, ssl, f"flotilla:celery:{_fleet(settings)}:", options)


async def answers(settings: MaintenanceSettings) -> bool:
    """Whether this Redis can be reached now."""
    if not (url := celery_redis_url(settings)):
        return True
    redis = connect(url)
    try:
        await redis.ping()
    except StoreError:
        return False
    finally:
        await redis.aclose()
    return True


async def problem(settings: MaintenanceSettings) -> str:
    """Why Celery can never use this Redis; empty if it can, or if Redis can't be reached now."""
    if not (url := celery_redis_url(settings)):
        return ""
    redis = connect(url)
    try:
        await redis.ping()
    except StoreRefused as error:
        if "DB index" in str(error):  # many managed ones have one database, others have 16
            return (
                f"FLOTILLA_MAINTENANCE_REDIS_URL: {error}: Celery needs a database of its own; "
                "name one (the fleet's own works too, their keys differ)"
            )
        if "cluster mode" in str(error):
            return (
                f"FLOTILLA_MAINTENANCE_REDIS_URL: {error}: Celery can't use a cluster; "
                "name a Redis that is not a cluster, however small"
            )
    except StoreError:
        pass
    finally:
        await redis.aclose()
    return ""


def _fleet(settings: MaintenanceSettings) -> str:
    """An id of the fleet: equal for all processes with the same servers and database."""
    return sha256(redis_url.parse(settings.redis_url).name.encode()).hexdigest()[:8]
