"""Every setting of every process, read once at start from flags, variables and secret files.

`redis_url` is the flag `--redis-url`, else the variable `FLOTILLA_REDIS_URL`, else the content of
the file `/run/secrets/flotilla_redis_url`, where container engines put secrets. The settings
themselves are declared in setting_groups/, by the process that reads them.

The only file that reads environment variables. A wrong or misspelt name stops the process with a
line that names it; nothing is silently ignored.
"""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as SettingsSourceError

from shared.platform.setting_groups.errors import PREFIX, SettingsError
from shared.platform.setting_groups.every_process import EveryProcessSettings
from shared.platform.setting_groups.fields import FieldSettings
from shared.platform.setting_groups.gateway import LOOPBACK, GatewaySettings
from shared.platform.setting_groups.maintenance import MaintenanceSettings
from shared.platform.setting_groups.pool import DEMO_MODEL, PoolSettings
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
_PLAIN_ADDRESS = re.compile(r"[\w./-]*(:\d+(/\d+)?)?")


class Settings(
    EveryProcessSettings,
    GatewaySettings,
    FieldSettings,
    MaintenanceSettings,
    PoolSettings,
    WorkerSettings,
    SimulatedEngineSettings,
    BaseSettings,
):
    """Durations are seconds, sizes are bytes, unless the name says otherwise."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")


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


def engine_variable(name: str) -> str | None:
    """A variable that the worker has set for processes of its engine."""
    return os.environ.get(name)


def set_engine_variable(name: str, value: str) -> None:
    """Set one of vLLM's own environment variables, whatever it was."""
    os.environ[name] = value
