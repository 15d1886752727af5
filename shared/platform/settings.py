"""Every setting of every process, read once at start.

`redis_url` is the flag `--redis-url`, else the variable `FLOTILLA_REDIS_URL`, else the content of
the file `/run/secrets/flotilla_redis_url`, where container engines put secrets, else the key
`redis_url` of flotilla.yaml. The settings themselves are declared in setting_groups/, by the
process that reads them.

The only file that reads environment variables. A wrong or misspelt name stops the process with a
line that names it; nothing is silently ignored.
"""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings import SettingsError as SettingsSourceError

from shared.platform import config_file
from shared.platform.setting_groups.client import ClientSettings
from shared.platform.setting_groups.errors import PREFIX, SettingsError
from shared.platform.setting_groups.every_process import EveryProcessSettings
from shared.platform.setting_groups.fields import FieldSettings
from shared.platform.setting_groups.gateway import LOOPBACK, GatewaySettings
from shared.platform.setting_groups.maintenance import MaintenanceSettings
from shared.platform.setting_groups.pool import DEMO_MODEL, PoolSettings
from shared.platform.setting_groups.pool_entry import FileSettings
from shared.platform.setting_groups.worker import SimulatedEngineSettings, WorkerSettings

__all__ = [
    "DEMO_MODEL",
    "LOOPBACK",
    "PREFIX",
    "Settings",
    "SettingsError",
    "drop_variables",
    "engine_variable",
    "load_settings",
    "set_engine_defaults",
    "set_engine_variable",
    "to_environment",
]

SECRETS = Path("/run/secrets")
_NESTED = "__"
_OF_ONE_POOL = ("model", "served_model_name", "engine_args", "autoscale")
_OF_A_POOL = f"{PREFIX}POOLS{_NESTED}"
"""What variables begin with that set one key of a pool."""
_FILE: ContextVar[Mapping[str, Any] | None] = ContextVar("_FILE", default=None)
"""The content of flotilla.yaml while the settings are made."""
_PLAIN_ADDRESS = re.compile(r"[\w./-]*(:\d+(/\d+)?)?")


class Settings(
    EveryProcessSettings,
    GatewaySettings,
    FieldSettings,
    MaintenanceSettings,
    PoolSettings,
    WorkerSettings,
    SimulatedEngineSettings,
    ClientSettings,
    FileSettings,
    BaseSettings,
):
    """Durations are seconds, sizes are bytes, unless the name says otherwise."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter=_NESTED, frozen=True, extra="forbid"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The sources, the one that wins first."""
        file = InitSettingsSource(settings_cls, init_kwargs=dict(_FILE.get() or {}))
        return init_settings, env_settings, file_secret_settings, file


def load_settings(**flags: Any) -> Settings:
    """Settings from flags that are not None, else variables, secret files, flotilla.yaml, defaults.

    Raises SettingsError with one line per wrong setting.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    path = config_file.find(given.get("config") or os.environ.get(PREFIX + "CONFIG"))
    file = {} if path is None else config_file.read(path)
    secrets = SECRETS if SECRETS.is_dir() else None
    problems = _misspelt(os.environ)
    if secrets:
        files = [each.name for each in secrets.iterdir()]
        problems += [f"{secrets}/{problem}" for problem in _misspelt(files, str.lower)]
    problems += [f"{path}: {problem}" for problem in _unknown_keys(file)]
    if problems:
        raise SettingsError("\n".join(problems))
    if path is not None:
        given["config"] = path
    token = _FILE.set(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what pydantic skips with a warning: a folder, a link
            settings = Settings(_secrets_dir=secrets, **given)
    except SettingsSourceError as error:  # not readable for this user, or no text
        where = "" if "pools" in str(error) else f"{secrets}: "
        raise SettingsError(f"{where}{error.__cause__ or error}") from error
    except ValidationError as error:
        problems += [_problem(item, given, file, path) for item in error.errors()]
        raise SettingsError("\n".join(problems)) from error
    finally:
        _FILE.reset(token)
    _refuse_two_descriptions(settings)
    return settings


def _refuse_two_descriptions(settings: Settings) -> None:
    """Raise SettingsError if one pool is described beside the list of pools."""
    for name in _OF_ONE_POOL if settings.pools else ():
        if getattr(settings, name):
            raise SettingsError(
                f"`{name}` describes one pool, but {settings.config or 'FLOTILLA_POOLS'} lists the "
                f"pools: set it there, or {_OF_A_POOL}<POOL>__<KEY> in its place"
            )


def origin(name: str, flags: Mapping[str, Any], file: Mapping[str, Any]) -> str:
    """Where a setting's value comes from: `flag`, `variable`, `secret file`, `file`, `default`.

    `flags` are those given, `file` is the content of flotilla.yaml. Of `pools`, each variable and
    the file have a part.
    """
    if flags.get(name) is not None:
        return "flag"
    variables = {variable.upper() for variable in os.environ}
    if PREFIX + name.upper() in variables:
        return "variable"
    if (SECRETS / (PREFIX + name).lower()).exists():
        return "secret file"
    return "file" if name in file else "default"


def pool_key_origin(pool: str, key: str) -> str:
    """Where the value of a pool's key comes from: `variable` or `file`."""
    variable = f"{_OF_A_POOL}{pool}{_NESTED}{key}".upper()
    names = {name.upper() for name in os.environ}
    nested = any(name.startswith(variable + _NESTED) for name in names)
    return "variable" if nested or variable in names else "file"


def _problem(
    item: ErrorDetails, given: Mapping[str, Any], file: Mapping[str, Any], path: Path | None
) -> str:
    """What is wrong with a setting, by the name that the user typed, without a secret."""
    field = str(item["loc"][0]) if item["loc"] else ""
    value = str(item["input"])
    # An address may hold a password in several places.
    secret = "key" in field or ("url" in field and not _PLAIN_ADDRESS.fullmatch(value))
    source = origin(field, given, file)
    shown = "" if secret or isinstance(item["input"], dict) else f"={item['input']!r}"
    if source == "flag":
        name = f"--{field.replace('_', '-')}" + ("" if secret else f" {value}")
    elif field == "pools" or source == "file":
        key = ".".join(str(part) for part in item["loc"] if part != "[key]")
        name = f"{path or PREFIX + 'POOLS'}: {key}{shown}"
    else:
        name = PREFIX + field.upper() + shown
    return f"{name}: {item['msg'].removeprefix('Value error, ')}"


def _unknown_keys(file: Mapping[str, Any]) -> list[str]:
    """What to say of the keys of flotilla.yaml that are no settings."""
    known = set(Settings.model_fields) - {"config"}
    return [
        f"{name}: there is no such setting{_hint(name, known)}"
        for name in file
        if name not in known
    ]


def _hint(name: str, known: Iterable[str], spelt: Callable[[str], str] = str) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {spelt(near[0])}?" if near else ""


def _misspelt(names: Iterable[str], spelt: Callable[[str], str] = str.upper) -> list[str]:
    """What to say of those that look like ours and are none; settings are `spelt` like that."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    problems = []
    for name in names:
        upper = name.upper()
        if upper.startswith(PREFIX) and upper not in known and not upper.startswith(_OF_A_POOL):
            problems.append(f"{name}: there is no such setting{_hint(upper, known, spelt)}")
    return problems


def to_environment(settings: Settings, **changes: Any) -> dict[str, str]:
    """The environment for a child process that must see these settings with `changes` made."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(PREFIX) or name.upper().startswith(_OF_A_POOL)
    }
    # The child reads the pools itself, from the same file and the same variables.
    left_out = {"pools", *ClientSettings.model_fields}
    values = settings.model_dump(exclude_defaults=True, exclude=left_out) | changes
    for name, value in values.items():
        if isinstance(value, tuple):
            value = ",".join(
                each.get_secret_value() if isinstance(each, SecretStr) else each for each in value
            )
        if value is not None:
            environment[PREFIX + name.upper()] = str(value)
    return environment


WITHOUT_KEYS: dict[str, None] = dict.fromkeys(("api_keys", "api_keys_file", "admin_keys"))
"""For `to_environment`: only gateways check clients' keys."""


def drop_variables(prefix: str) -> None:
    """Take out of the environment what a library would obey although the settings say otherwise."""
    for name in [name for name in os.environ if name.startswith(prefix)]:
        del os.environ[name]


def set_engine_defaults(defaults: Mapping[str, str]) -> None:
    """Set variables that vLLM reads from the environment, where the user has not."""
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def engine_variable(name: str) -> str | None:
    """A variable that the worker has set for processes of its engine."""
    return os.environ.get(name)


def set_engine_variable(name: str, value: str) -> None:
    """Set one of vLLM's own environment variables, whatever it was."""
    os.environ[name] = value
