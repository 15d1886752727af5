"""Where Celery's messages are: the URL of a Redis database for redis-py and for Celery, or, where
the fleet is on a cluster and no other Redis is named, the memory of Celery's own process.

Celery has a database of its own, so that emptying it deletes no job. The prefix of its
keys names the fleet, so several fleets may share a database.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from gateway.maintenance.maintenance_settings import MaintenanceSettings
from shared.platform import cluster_url, sentinel_url
from shared.platform.node_list import split_url
from shared.platform.settings import SettingsError
from shared.store.interface import StoreError, StoreRefused
from shared.store.redis import keys
from shared.store.redis.redis_client import connect, parse_url


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
    """The setting for it, else the database after the fleet's own. Raises SettingsError.

    Empty if that is a cluster, which Celery can't use: messages stay in memory.
    """
    if settings.maintenance_redis_url:
        return settings.maintenance_redis_url
    if cluster_url.is_cluster(settings.redis_url):
        return ""
    parts = split_url(settings.redis_url)
    if sentinel_url.is_sentinel(settings.redis_url):
        fleet = sentinel_url.parse(settings.redis_url)
        return urlunsplit(parts._replace(path=f"/{fleet.service}/{fleet.db + 1}"))
    db = int(_parse("FLOTILLA_REDIS_URL", settings.redis_url).get("db", 0)) + 1
    query = [(name, value) for name, value in parse_qsl(parts.query) if name != "db"]
    if parts.scheme == "unix":
        query.append(("db", str(db)))
    path = parts.path if parts.scheme == "unix" else f"/{db}"
    options = f"?{urlencode(query)}" if query else ""
    return f"{parts.scheme}://{parts.netloc}{path}{options}"


def broker(settings: MaintenanceSettings) -> Broker:
    """The same database for Celery. Raises SettingsError.

    Of a URL's options, only `db` and those of TLS are used; timeouts are set in celery_app.py.
    """
    url = celery_redis_url(settings)
    if not url:
        return Broker("memory://", None, "", {})
    if sentinel_url.is_sentinel(url):
        return _sentinel_broker(settings, url)
    options = _parse("FLOTILLA_MAINTENANCE_REDIS_URL", url)
    user, password = options.get("username") or "", options.get("password") or ""
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
    db = options.get("db", 0)
    if "path" in options:
        celery_url = f"redis+socket://{login}{quote(options['path'])}?virtual_host={db}"
    else:
        host = options.get("host", "localhost")
        host = f"[{host}]" if ":" in host else quote(host)
        celery_url = f"redis://{login}{host}:{options.get('port', 6379)}/{db}"
    ssl = None
    if urlsplit(url).scheme == "rediss":
        ssl = {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
        ssl |= {name: value for name, value in options.items() if name.startswith("ssl_")}
    return Broker(celery_url, ssl, keys.celery_prefix(_fleet(settings)), {})


def _sentinel_broker(settings: MaintenanceSettings, url: str) -> Broker:
    try:
        parts = sentinel_url.parse(url)
    except ValueError as error:
        raise SettingsError(f"FLOTILLA_MAINTENANCE_REDIS_URL: {error}") from error
    user, password = parts.username or "", parts.password or ""
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
    urls = [f"sentinel://{login}{host}:{port}/{parts.db}" for host, port in parts.sentinels]
    ssl = {"ssl_cert_reqs": "required", "ssl_check_hostname": True} if parts.tls else None
    names = {"sentinel_username": "username", "sentinel_password": "password"}
    login_there = {
        name: parts.options[option] for option, name in names.items() if option in parts.options
    }
    options = {"master_name": parts.service, "sentinel_kwargs": login_there}
    return Broker(";".join(urls), ssl, keys.celery_prefix(_fleet(settings)), options)


async def answers(settings: MaintenanceSettings) -> bool:
    """Whether this Redis can be reached now."""
    if not (url := celery_redis_url(settings)):
        return True
    redis = connect(url, max_connections=1)
    try:
        await redis.ping()
    except StoreError:
        return False
    finally:
        await redis.aclose(close_connection_pool=True)
    return True


async def problem(settings: MaintenanceSettings) -> str:
    """Why Celery can never use this Redis; empty if it can, or if Redis can't be reached now."""
    broker(settings)  # raises for an address that makes no sense
    if not (url := celery_redis_url(settings)):
        return ""
    redis = connect(url, max_connections=1)
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
        await redis.aclose(close_connection_pool=True)
    return ""


def _parse(name: str, url: str) -> dict[str, Any]:
    try:
        return dict(parse_url(url))
    except ValueError as error:
        raise SettingsError(f"{name}: {error}") from error


def _fleet(settings: MaintenanceSettings) -> str:
    """An id of the fleet: equal for all processes with the same host, port, path and database."""
    if sentinel_url.is_sentinel(settings.redis_url):
        return _digest(sentinel_url.parse(settings.redis_url).name)
    if cluster_url.is_cluster(settings.redis_url):
        return _digest(cluster_url.parse(settings.redis_url).name)
    options = _parse("FLOTILLA_REDIS_URL", settings.redis_url)
    names = ("host", "port", "path", "db")
    return _digest(repr([options.get(name) for name in names]))


def _digest(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:8]
