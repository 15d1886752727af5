"""Where Celery keeps its messages: the maintenance process's Redis, in our words and in Celery's.

Celery's database is its own, so that a person who empties it, or a Celery that runs wild, does not
touch a job. The keys are prefixed by fleet, so fleets may share one.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from redis.asyncio.connection import parse_url

from shared.platform.redis_client import RedisError, ResponseError, connect
from shared.platform.settings import Settings, SettingsError
from shared.protocol import keys


class Broker(NamedTuple):
    """One Redis database."""

    url: str
    """As Celery writes it; holds the password."""
    ssl: dict[str, Any] | None
    """TLS options; None without TLS. In a URL, Celery takes their absence for `trust everybody`."""
    prefix: str
    """Of all keys."""


def celery_redis_url(settings: Settings) -> str:
    """The setting, or the database after the fleet's own. Raises SettingsError."""
    if settings.maintenance_redis_url:
        return settings.maintenance_redis_url
    parts = urlsplit(settings.redis_url)
    db = int(_parse("FLOTILLA_REDIS_URL", settings.redis_url).get("db", 0)) + 1
    query = [(name, value) for name, value in parse_qsl(parts.query) if name != "db"]
    if parts.scheme == "unix":
        query.append(("db", str(db)))
    path = parts.path if parts.scheme == "unix" else f"/{db}"
    options = f"?{urlencode(query)}" if query else ""
    return f"{parts.scheme}://{parts.netloc}{path}{options}"


def broker(settings: Settings) -> Broker:
    """The same for Celery. Raises SettingsError.

    Of a URL's options, `db` and those of TLS count; time limits are app.py's.
    """
    url = celery_redis_url(settings)
    options = _parse("FLOTILLA_MAINTENANCE_REDIS_URL", url)
    user, password = options.get("username") or "", options.get("password") or ""
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
    db = options.get("db", 0)
    if "path" in options:
        place = f"redis+socket://{login}{quote(options['path'])}?virtual_host={db}"
    else:
        host = options.get("host", "localhost")
        host = f"[{host}]" if ":" in host else quote(host)
        place = f"redis://{login}{host}:{options.get('port', 6379)}/{db}"
    ssl = None
    if urlsplit(url).scheme == "rediss":
        ssl = {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
        ssl |= {name: value for name, value in options.items() if name.startswith("ssl_")}
    return Broker(place, ssl, keys.celery_prefix(_fleet(settings)))


async def refusal(settings: Settings) -> str:
    """Why this Redis will never do, if so; empty also if it can't be asked now."""
    redis = connect(celery_redis_url(settings), max_connections=1)
    try:
        await redis.ping()
    except ResponseError as error:
        if "DB index" in str(error):  # many managed ones have one database, others have 16
            return (
                f"FLOTILLA_MAINTENANCE_REDIS_URL: {error}: there is no database for Celery after the "
                "fleet's; name one (the fleet's own will do, keys do not meet)"
            )
        if "cluster mode" in str(error):
            return (
                f"FLOTILLA_MAINTENANCE_REDIS_URL: {error}: Celery can't use a cluster; name a Redis "
                "that is none, however small"
            )
    except (RedisError, OSError):
        pass
    finally:
        await redis.aclose(close_connection_pool=True)
    return ""


def _parse(name: str, url: str) -> dict[str, Any]:
    try:
        return dict(parse_url(url))
    except ValueError as error:
        raise SettingsError(f"{name}: {error}") from error


def _fleet(settings: Settings) -> str:
    """The same for all processes that name the fleet's Redis in the same way."""
    options = _parse("FLOTILLA_REDIS_URL", settings.redis_url)
    names = ("host", "port", "path", "db")
    return sha256(repr([options.get(name) for name in names]).encode()).hexdigest()[:8]
