"""Settings: where their values come from, and how a process reads those that it has.

Each process has a class of settings in its own package, and so has each plug-in; `DECLARED` lists
them all. `redis_url` is the flag `--redis-url`, else the variable `FLOTILLA_REDIS_URL`, else the
content of the file `/run/secrets/flotilla_redis_url`, where container engines put secrets, else the
key `redis_url` of flotilla.yaml.

The only file that reads environment variables. A wrong or misspelt name stops the process with a
line that names it; nothing is silently ignored.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings import SettingsError as SettingsSourceError

from shared.platform import config_file
from shared.platform.config_file import SettingsError as SettingsError
from shared.platform.printable import escaped

PREFIX = "FLOTILLA_"
DECLARED: Mapping[str, tuple[str, ...]] = {
    "gateway": ("gateway.gateway_settings:GatewaySettings",),
    "worker": (
        "worker.worker_settings:WorkerSettings",
        "worker.engines.vllm.args:VllmSettings",
        "worker.engines.simulated.simulated_settings:SimulatedSettings",
    ),
    "maintenance": ("gateway.maintenance.maintenance_settings:MaintenanceSettings",),
    "up": ("gateway.launcher.launcher_settings:LauncherSettings",),
    "client": ("gateway.cli.client_settings:ClientSettings",),
}
"""Process -> its class of settings, then those of its plug-ins. By name, since this package imports
no other: a process loads the classes of others only to tell their variables from misspelt ones."""
SECRETS = Path("/run/secrets")
_NESTED = "__"
_OF_A_POOL = f"{PREFIX}POOLS{_NESTED}"
"""The beginning of variables that set one key of a pool."""
_QUOTES = ("'", '"')
_OF_WORDS = frozenset({"engine_args", "autoscale"})
"""Settings that may go over several lines, as in flotilla.yaml."""
_IN_NO_FILE = frozenset({"config", "url"})
"""Settings that flotilla.yaml can't have. Commands send the API key to `url`, and the file may be
another's: that of a repository that was cloned."""
_LOOPBACK = ("localhost", "127.0.0.0/8", "127.0.0.1", "::1")
"""For NO_PROXY; some libraries know no networks there."""
_FILE: ContextVar[Mapping[str, Any] | None] = ContextVar("_FILE", default=None)
"""The content of flotilla.yaml while the settings are made."""
_PLAIN_ADDRESS = re.compile(r"[\w./-]*(:\d+(/\d+)?)?")


def split_names(text: str) -> list[str]:
    """The names in a list that is separated by commas or lines."""
    return list(filter(None, map(str.strip, text.replace("\n", ",").split(","))))


Names = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: split_names(value) if isinstance(value, str) else value),
]
SettingList = Annotated[Names, NoDecode]
"""For settings: the value of a variable is a list of names, not JSON."""


def clean(value: Any, field: str = "") -> Any:
    """A setting without white space around its texts. `field`: its name.

    Raises ValueError for a text in quotes, and for one with control characters.
    """
    if isinstance(value, SecretStr):
        return SecretStr(clean(value.get_secret_value()))
    if isinstance(value, Path):
        return Path(clean(str(value)))
    if isinstance(value, tuple):
        return tuple(map(clean, value))
    if isinstance(value, dict) and field != "engine_args":  # vLLM's own may be of any kind
        return {clean(key): clean(each) for key, each in value.items()}
    if type(value) is not str:
        return value
    text = value.strip()
    plain = " ".join(text.split()) if field in _OF_WORDS else text
    if "\n" in plain or "\t" in plain or escaped(plain) != plain:
        raise ValueError("control characters, as line ends, can't be part of it")
    if text[:1] in _QUOTES and text.find(text[0], 1) == len(text) - 1 > 0:
        raise ValueError("the quotes would be part of it: give it without them")
    return text


class ProcessSettings(BaseSettings):
    """Settings of one process. Durations are seconds, sizes bytes, unless the name differs."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter=_NESTED, frozen=True, extra="forbid"
    )

    config: Path | None = Field(
        None, description="the file with settings; else flotilla.yaml in the working directory"
    )

    @field_validator("*")
    @classmethod
    def _clean(cls, value: Any, info: ValidationInfo) -> Any:
        return clean(value, info.field_name or "")

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
        file = {name: v for name, v in (_FILE.get() or {}).items() if name in cls.model_fields}
        from_file = InitSettingsSource(settings_cls, init_kwargs=file)
        return init_settings, env_settings, file_secret_settings, from_file


Kind = TypeVar("Kind", bound=ProcessSettings)


@cache
def declared(*processes: str) -> tuple[type[ProcessSettings], ...]:
    """The classes of settings of these processes; without a name, of all."""
    places = [place for name in processes or DECLARED for place in DECLARED[name]]
    found = (place.partition(":") for place in places)
    return tuple(getattr(importlib.import_module(module), name) for module, _, name in found)


def _names(*processes: str) -> set[str]:
    return {name for kind in declared(*processes) for name in kind.model_fields}


def load_settings(kind: type[Kind], **flags: Any) -> Kind:
    """Settings from flags that are not None, else variables, secret files, flotilla.yaml, defaults.

    Raises SettingsError with one line for each wrong setting of this class, and for each name that
    no process has.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    path = config_file.find(given.get("config") or os.environ.get(PREFIX + "CONFIG", "").strip())
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
            return kind(_secrets_dir=secrets, **given)
    except SettingsSourceError as error:  # not readable for this user, or no text
        where = "" if "pools" in str(error) else f"{secrets}: "
        raise SettingsError(f"{where}{error.__cause__ or error}") from error
    except ValidationError as error:
        problems = [_problem(item, given, file, path) for item in error.errors()]
        raise SettingsError("\n".join(problems)) from error
    finally:
        _FILE.reset(token)


def load_all(**flags: Any) -> list[ProcessSettings]:
    """The settings of every process and plug-in. Raises SettingsError for all that is wrong."""
    found, problems = [], []
    for kind in declared():
        own = {name: value for name, value in flags.items() if name in kind.model_fields}
        try:
            found.append(load_settings(kind, **own))
        except SettingsError as error:
            problems += str(error).splitlines()
    if problems:
        raise SettingsError("\n".join(dict.fromkeys(problems)))
    return found


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
    """The problems of a flotilla.yaml with keys that are no settings."""
    known = _names() - _IN_NO_FILE
    elsewhere = {name: f" in a file: use {PREFIX}{name.upper()}" for name in _IN_NO_FILE}
    return [
        f"{name}: there is no such setting{elsewhere.get(name) or _hint(name, known)}"
        for name in file
        if name not in known
    ]


def _hint(name: str, known: Iterable[str], spelt: Callable[[str], str] = str) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {spelt(near[0])}?" if near else ""


def _misspelt(names: Iterable[str], spelt: Callable[[str], str] = str.upper) -> list[str]:
    """The problems of names that look like ours and are none; settings are `spelt` like that."""
    known = {PREFIX + name.upper() for name in _names()}
    problems = []
    for name in names:
        upper = name.upper()
        if upper.startswith(PREFIX) and upper not in known and not upper.startswith(_OF_A_POOL):
            problems.append(f"{name}: there is no such setting{_hint(upper, known, spelt)}")
    return problems


def to_environment(
    process: str, settings: ProcessSettings | None = None, **changes: Any
) -> dict[str, str]:
    """The environment of a child process: this one's, with `settings` and `changes` as variables.

    It has only the variables of `process`, a key of `DECLARED`, so that none but gateways see their
    keys; of another program (empty), no settings. A change to None takes a variable out.
    """
    ours = {PREFIX + name.upper() for name in (_names(process) if process else ())}
    given = {} if settings is None else dict(_as_variables(settings))
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith(PREFIX)
        or (name.upper() in ours and name.upper() not in given)
        or (name.upper().startswith(_OF_A_POOL) and PREFIX + "POOLS" in ours)
    }
    environment |= {name: value for name, value in given.items() if name in ours}
    for name, value in changes.items():
        environment.pop(PREFIX + name.upper(), None)
        if value is not None:
            environment[PREFIX + name.upper()] = str(value)
    return environment


def _as_variables(settings: ProcessSettings) -> Iterator[tuple[str, str]]:
    """The settings that are not left to their defaults."""
    # A child reads these itself, from the same file and the same variables.
    for name in settings.model_fields_set - {"pools", "tenants", "fair_shares", "placement"}:
        value = getattr(settings, name)
        if isinstance(value, tuple):
            value = ",".join(
                each.get_secret_value() if isinstance(each, SecretStr) else each for each in value
            )
        if value is not None:
            yield PREFIX + name.upper(), str(value)


def drop_variables(prefix: str) -> None:
    """Delete the variables with this prefix, which a library would use in place of the settings."""
    for name in [name for name in os.environ if name.startswith(prefix)]:
        del os.environ[name]


def never_proxy_loopback() -> None:
    """Except this machine's own addresses from proxies, in the variables that HTTP libraries read.

    A proxy is meant for other hosts: it can't reach these, and would see the keys of calls to them.
    """
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return
    given = {name: os.environ.get(name, "") for name in ("no_proxy", "NO_PROXY")}
    for name, value in given.items():
        excepted = value or given[name.swapcase()]
        if excepted.strip() != "*":
            os.environ[name] = ",".join(filter(None, (excepted, *_LOOPBACK)))


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
