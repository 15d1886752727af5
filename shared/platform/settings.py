"""Every setting of every process, read once at start from flags, variables and secret files.

`redis_url` is the flag `--redis-url`, else the variable `FLOTILLA_REDIS_URL`, else the content of
the file `/run/secrets/flotilla_redis_url`, where container engines put secrets.

The only file that looks at the environment. A wrong or misspelt name stops the process with a
line that names it; nothing is silently ignored.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from pydantic_settings import SettingsError as SettingsSourceError

from shared.fleet.autoscale_policy import parse_autoscale

PREFIX = "FLOTILLA_"
SECRETS = Path("/run/secrets")
_TENANT = re.compile(r"^[A-Za-z0-9_.-]{1,64}$")
_PLAIN_ADDRESS = re.compile(r"[\w./-]*(:\d+(/\d+)?)?")
_WORKER_ID = re.compile(r"^[A-Za-z0-9_.-]{1,64}$")
DEMO_MODEL = "flotilla-demo"
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class SettingsError(ValueError):
    """A setting is wrong; the message names the variable, the value and what is accepted."""


class Settings(BaseSettings):
    """Durations are seconds, sizes are bytes, unless the name says otherwise."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    # --- everywhere ---
    redis_url: str = Field("redis://127.0.0.1:6379/0", description="the fleet's Redis")
    shards: int = Field(1, ge=1, le=4096, description="parts that jobs are spread over")
    shard_redis_urls: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="where shards lie, in turn, comma separated; empty is the fleet's Redis"
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "pretty"] = Field(
        "auto", description="of log lines; auto is pretty on a terminal and JSON elsewhere"
    )
    fast_paths: Literal["auto", "off"] = Field(
        "auto",
        description="off: never use private parts of uvicorn, redis-py or vLLM to save CPU time",
    )
    lease_s: float = Field(15.0, ge=0.2, le=600, description="a silent worker loses its jobs then")

    # --- gateway ---
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        (), description="`name:key` or `key`, comma separated (in a secret file also by lines)"
    )
    api_keys_file: Path | None = Field(None, description="the same, one a line")
    max_body_bytes: int = Field(8 << 20, ge=1024)
    max_body_values: int = Field(
        1_000_000, ge=1000, description="values in one request's body, of prompts of token ids too"
    )
    max_body_objects: int = Field(
        200_000, ge=1000, description="objects, lists and strings in one request's body"
    )
    max_sequences: int = Field(
        512, ge=1, le=1024, description="prompts times `n` of one completions request"
    )
    max_messages: int = Field(10_000, ge=1, description="messages of one chat request")
    body_timeout_s: float = Field(30.0, gt=0, description="a request's body must be here by then")
    max_header_bytes: int = Field(
        32 << 10, ge=1024, description="of a request line and its headers together"
    )
    header_timeout_s: float = Field(
        10.0, gt=0, description="a request's headers must be here by then; a silent client too"
    )
    max_waiting_connections: int = Field(
        512,
        ge=1,
        description="of one address (IPv6: one /64) that show no valid key and no request for a "
        "second or two; the oldest of more are closed. Requests in work do not count, nor do "
        "connections on which a key was valid once, such as a proxy's",
    )
    wrong_keys_per_minute: int = Field(
        20,
        ge=0,
        description="of one address, answered at once; more are answered a second late, and only "
        "so many at a time. A valid key is never held up",
    )
    max_attempts: int = Field(3, ge=1, le=100, description="workers a job may take down with it")
    max_queue_depth: int = Field(100_000, ge=1, description="waiting jobs per pool, shard and lane")
    keepalive_s: float = Field(10.0, gt=0, description="silence on a stream before a comment")
    stream_pace_s: float = Field(
        0.0, ge=0, le=1, description="a stream is written at most so often, in larger pieces"
    )
    stream_buffer_bytes: int = Field(
        1 << 20, ge=4096, description="what may wait in memory for one slow reader"
    )
    result_ttl_s: float = Field(86_400.0, ge=1, description="how long an ended /jobs job is kept")
    stream_ttl_s: float = Field(900.0, ge=1, description="the same for a /v1 call's job")

    access_log: bool = Field(True, description="a line in the gateway's log for each request")
    grace_s: int = Field(
        10,
        ge=1,
        le=3600,
        description="what open answers get after SIGTERM before they end with an error",
    )
    keyless: bool = Field(
        False,
        description="no API keys on an address that others reach: for a container whose port is "
        "published on loopback only",
    )

    # --- maintenance and autoscale ---
    maintenance_redis_url: str = Field(
        "", description="Celery's own database; empty is the next one of the fleet's Redis"
    )
    repair_interval_s: float = Field(
        30.0, ge=0.2, le=60, description="from one round of repairs in Redis to the next"
    )
    autoscale: str = Field(
        "", description="`model=min:max`, comma separated; empty is no autoscaling"
    )
    autoscale_actuator: Literal["none", "docker"] = Field(
        "none", description="who starts and drains workers; none: `flotilla up` or KEDA does"
    )
    docker_host: str = Field(
        "http://docker-proxy:2375", description="Docker API that may list, start and kill"
    )
    docker_project: str = Field("flotilla", description="Compose project of the workers")
    docker_service: str = Field("worker", description="its service; one container per worker")
    autoscale_tick_s: float = Field(2.0, ge=0.2, le=60, description="between two decisions")
    autoscale_target_wait_s: float = Field(
        5.0, ge=0, description="what a job may have to wait once its workers have started"
    )
    autoscale_utilization: float = Field(
        0.8, gt=0, le=1, description="share of the slots that is to be busy in steady load"
    )
    autoscale_down_after_s: float = Field(
        120.0, ge=0, description="fewer workers must have been enough for so long"
    )
    autoscale_idle_s: float = Field(
        300.0, ge=0, description="nothing waits or runs for so long before the last worker goes"
    )

    # --- worker ---
    engine: Literal["vllm", "simulated"] = "vllm"
    model: str = Field("", description="hub id or folder; empty is the demo model")
    served_model_name: str = Field("", description="the name clients use; empty is the model's own")
    engine_args: str = Field("", description="vLLM's own arguments, as on its command line")
    pool: str = Field("", description="workers of one pool share a queue; empty is by model name")
    worker_id: str = ""
    worker_host: str = "127.0.0.1"
    worker_port: int = Field(8100, ge=0, le=65535, description="health and metrics; 0 is any")
    drain_deadline_s: float = Field(30.0, ge=0, description="what running jobs get after SIGTERM")
    kv_high_watermark: float = Field(0.95, gt=0, le=1, description="claim nothing above")
    engine_stall_s: float = Field(
        120.0, gt=0, description="no step for so long with work in hand is a hung engine"
    )

    # --- the simulated engine (load and fault tests only) ---
    sim_max_num_seqs: int = Field(256, ge=1)
    sim_kv_tokens: int = Field(1 << 20, ge=1)
    sim_max_model_len: int = Field(8192, ge=1)
    sim_prefill_us_per_token: float = Field(20.0, ge=0)
    sim_step_ms: float = Field(10.0, ge=0, description="shortest step")
    sim_step_us_per_seq: float = Field(250.0, ge=0, description="step time per running sequence")
    sim_faults: str = Field(
        "", description="faults by name, see worker/engines/simulated/engine.py"
    )

    @field_validator("redis_url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        _server(url)
        return url

    @field_validator("api_keys", mode="before")
    @classmethod
    def _split_keys(cls, value: Any) -> Any:
        if isinstance(value, str):
            keys = value.replace("\n", ",").split(",")
            return tuple(SecretStr(key.strip()) for key in keys if key.strip())
        return value

    @field_validator("api_keys")
    @classmethod
    def _check_keys(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        for key in keys:
            _split_key(key.get_secret_value())
        return keys

    @field_validator("shard_redis_urls", mode="before")
    @classmethod
    def _split_urls(cls, value: Any) -> Any:
        if isinstance(value, str):
            urls = value.replace("\n", ",").split(",")
            return tuple(url.strip() for url in urls if url.strip())
        return value

    @field_validator("shard_redis_urls")
    @classmethod
    def _check_urls(cls, urls: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        # Channels are a server's, not a database's: who listened twice would hear all twice.
        if len({_server(url) for url in urls}) < len(urls):
            raise ValueError("a server stands there twice")
        if len(urls) > info.data.get("shards", 1):
            raise ValueError(f"{len(urls)} servers need FLOTILLA_SHARDS={len(urls)} or more")
        return urls

    @field_validator("worker_id")
    @classmethod
    def _check_worker_id(cls, value: str) -> str:
        if value and not _WORKER_ID.fullmatch(value):
            raise ValueError("letters, digits, '_', '.', '-'; at most 64")
        return value

    @field_validator("autoscale")
    @classmethod
    def _check_autoscale(cls, value: str) -> str:
        parse_autoscale(value)
        return value

    @property
    def server_urls(self) -> tuple[str, ...]:
        """Where shards lie: the n-th on the n-th of these, modulo how many there are."""
        return self.shard_redis_urls or (self.redis_url,)

    @property
    def all_redis_urls(self) -> tuple[str, ...]:
        """Every server that holds something of the fleet."""
        return tuple(dict.fromkeys((self.redis_url, *self.server_urls)))

    def announced_model(self) -> str:
        """The name that a worker of these settings gives its model, unless vLLM's own arguments do.

        A worker's word counts; this is for before one has spoken.
        """
        demo = "simulated" if self.engine == "simulated" else DEMO_MODEL
        return self.served_model_name or self.model or demo

    def tenants(self) -> Mapping[str, str]:
        """SHA-256 of each API key (hex) -> the tenant it stands for. Keys themselves are not kept.

        Raises SettingsError if `api_keys_file` can't be read.
        """
        keys = [key.get_secret_value() for key in self.api_keys]
        if self.api_keys_file is not None:
            keys += _read_keys(self.api_keys_file)
        tenants = {}
        for entry in keys:
            name, key = _split_key(entry)
            digest = hashlib.sha256(key.encode()).hexdigest()
            tenants[digest] = name or f"key-{digest[:8]}"
        return tenants


def _server(url: str) -> tuple[str | None, int | None, str]:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return None, None, parts.path
    if parts.scheme not in {"redis", "rediss"}:
        raise ValueError("must start with redis://, rediss:// or unix://")
    try:
        return parts.hostname, parts.port or 6379, ""
    except ValueError:
        raise ValueError("the port is no number") from None  # it may be a password


def _read_keys(path: Path) -> list[str]:
    where = f"{PREFIX}API_KEYS_FILE={path}"
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
        keys = [line for line in lines if line and not line.startswith("#")]
        for key in keys:
            _split_key(key)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{where}: {error}") from error
    if not keys:  # an empty file must not open the door
        raise SettingsError(f"{where}: there is no key in it")
    return keys


def _split_key(entry: str) -> tuple[str, str]:
    name, colon, key = entry.partition(":")
    if entry.startswith("#"):  # a comment must not become a key
        raise ValueError("an API key does not begin with '#'; FLOTILLA_API_KEYS_FILE has comments")
    if not colon:
        return "", entry
    if not _TENANT.fullmatch(name) or not key:
        raise ValueError("an API key is `key` or `name:key`; names are letters, digits, '_.-'")
    return name, key


def load_settings(**flags: Any) -> Settings:
    """Settings from flags that are not None, else variables, else secret files, else defaults.

    Raises SettingsError with one line per wrong setting.
    """
    secrets = SECRETS if SECRETS.is_dir() else None
    problems = _misspelt(os.environ)
    if secrets:
        files = [path.name for path in secrets.iterdir()]
        problems += [f"{secrets}/{problem}" for problem in _misspelt(files, str.lower)]
    if problems:
        raise SettingsError("\n".join(problems))
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what pydantic skips with a warning: a folder, a link
            return Settings(_secrets_dir=secrets, **given)
    except SettingsSourceError as error:  # not readable for this user, or no text
        raise SettingsError(f"{secrets}: {error.__cause__ or error}") from error
    except ValidationError as error:
        problems += [_problem(item, given) for item in error.errors()]
        raise SettingsError("\n".join(problems)) from error


def _problem(item: ErrorDetails, given: Mapping[str, Any]) -> str:
    """What is wrong with a setting, by the name that the user typed, without a secret."""
    field = str(item["loc"][0]) if item["loc"] else ""
    value = str(item["input"])
    # An address may hold a password in several places.
    secret = "key" in field or ("url" in field and not _PLAIN_ADDRESS.fullmatch(value))
    if field in given:
        name = f"--{field.replace('_', '-')}" + ("" if secret else f" {value}")
    else:
        name = PREFIX + field.upper() + ("" if secret else f"={item['input']!r}")
    return f"{name}: {item['msg'].removeprefix('Value error, ')}"


def _misspelt(names: Iterable[str], spelt: Callable[[str], str] = str.upper) -> list[str]:
    """What to say of those that look like ours and are none; settings are `spelt` like that."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    problems = []
    for name in names:
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            near = difflib.get_close_matches(name.upper(), known, n=1)
            hint = f"; did you mean {spelt(near[0])}?" if near else ""
            problems.append(f"{name}: there is no such setting{hint}")
    return problems


def to_environment(settings: Settings, **changes: Any) -> dict[str, str]:
    """The environment for a child process that must see these settings with `changes` made."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(PREFIX)}
    values = settings.model_dump(exclude_defaults=True) | changes
    for name, value in values.items():
        if isinstance(value, tuple):
            value = ",".join(
                each.get_secret_value() if isinstance(each, SecretStr) else each for each in value
            )
        if value is not None:
            environment[PREFIX + name.upper()] = str(value)
    return environment


def drop_variables(prefix: str) -> None:
    """Take out of the environment what a library would obey although the settings say otherwise."""
    for name in [name for name in os.environ if name.startswith(prefix)]:
        del os.environ[name]


def set_engine_defaults(defaults: Mapping[str, str]) -> None:
    """Set variables that vLLM reads from the environment, where the user has not."""
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def set_engine_variable(name: str, value: str) -> None:
    """Set one of vLLM's own environment variables, whatever it was."""
    os.environ[name] = value
