"""`flotilla config`: checks flotilla.yaml and all other settings, and shows their values."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from pydantic import BaseModel, SecretStr

from gateway.cli.command import AsJson, examples
from gateway.cli.exit_codes import ExitCode
from shared.fleet.pool import Pool, PoolEntry
from shared.fleet.pool_settings import PoolSettings
from shared.fleet.pools import Pools, load_pools
from shared.platform import config_file
from shared.platform.redis_url import without_password
from shared.platform.settings import (
    ProcessSettings,
    SettingsError,
    load_all,
    origin,
    pool_key_origin,
)

_HIDDEN = "**********"
_COLUMN = 56

app = typer.Typer(help="flotilla.yaml and all other settings.", no_args_is_help=True)
Config = Annotated[
    Path | None,
    typer.Option(help="The file with settings; else flotilla.yaml in this folder.", metavar="FILE"),
]


class Line(NamedTuple):
    """One setting, or one key of a pool."""

    keys: tuple[str, ...]
    value: Any
    origin: str


@app.command(
    epilog=examples(
        "flotilla config check", "flotilla config check --config /etc/flotilla.yaml --json"
    )
)
def check(config: Config = None, as_json: AsJson = False) -> None:
    """Check every setting of flotilla.yaml, variables and secret files; 2 if one is wrong."""
    settings, pools = _load(config)
    file = settings[0].config
    if as_json:
        data = [pool.model_dump(mode="json") for pool in pools.all]
        path = str(file) if file else None
        print(json.dumps({"object": "config.check", "file": path, "pools": data}, indent=2))
        return
    print(f"{file or 'no flotilla.yaml'}: fine")
    for pool in pools.all:
        print(f"  {_summary(pool)}")


@app.command(epilog=examples("flotilla config show", "flotilla config show --origin --all"))
def show(
    config: Config = None,
    with_origin: Annotated[
        bool, typer.Option("--origin", help="Add where each value comes from.")
    ] = False,
    with_defaults: Annotated[
        bool, typer.Option("--all", help="Print the settings that have their defaults, too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the settings that differ from their defaults, as a flotilla.yaml, without secrets."""
    settings, _ = _load(config)
    path = settings[0].config
    file = config_file.read(path) if path else {}
    found = list(lines(settings, {"config": config}, file, with_defaults=with_defaults))
    if as_json:
        data = [
            {"setting": ".".join(each.keys), "value": each.value, "origin": each.origin}
            for each in found
        ]
        print(json.dumps({"object": "list", "data": data}, indent=2))
        return
    if not found:
        print(f"# {path or 'no flotilla.yaml'}: every setting has its default; --all prints them")
    begun: tuple[str, ...] = ()
    for line in found:
        for depth, key in enumerate(line.keys[:-1]):
            if line.keys[: depth + 1] != begun[: depth + 1]:
                print(f"{'  ' * depth}{key}:")
        begun = line.keys[:-1]
        text = f"{'  ' * len(begun)}{line.keys[-1]}: {json.dumps(line.value, ensure_ascii=False)}"
        print(f"{text:{_COLUMN}}  # {line.origin}" if with_origin else text)


def lines(
    settings: Iterable[ProcessSettings],
    flags: Mapping[str, Any],
    file: Mapping[str, Any],
    *,
    with_defaults: bool = False,
) -> Iterator[Line]:
    """The settings of all processes with their values and origins, the pools last."""
    values = {name: value for each in settings for name, value in each}
    pools: dict[str, PoolEntry] = values.pop("pools")
    del values["config"]
    for name, value in values.items():
        source = origin(name, flags, file)
        if source != "default" or with_defaults:
            yield Line((name,), _shown(value), source)
    for pool, entry in pools.items():
        for key, value in entry.model_dump(exclude_unset=not with_defaults, mode="json").items():
            given = key in entry.model_fields_set
            source = pool_key_origin(pool, key) if given else "default"
            yield Line(("pools", pool, key), value, source)


def _shown(value: Any) -> Any:
    """A value without secrets, as JSON has it."""
    if isinstance(value, SecretStr):
        return _HIDDEN
    if isinstance(value, tuple):
        return [_shown(each) for each in value]
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {name: _shown(each) for name, each in value.items()}
    if isinstance(value, Path):
        return str(value)
    return without_password(value) if isinstance(value, str) and "://" in value else value


def _summary(pool: Pool) -> str:
    least, most = pool.range
    workers = f"{least}" if least == most else f"{least} to {most}"
    version = f", version {pool.version}, weight {pool.weight}" if pool.version else ""
    adapters = f", adapters {', '.join(pool.adapters)}" if pool.adapters else ""
    names = ", ".join(pool.served_names)
    return f"pool {pool.name}: {names}{version}{adapters}; {pool.engine}; workers: {workers}"


def _load(config: Path | None) -> tuple[list[ProcessSettings], Pools]:
    """The settings of every process, and the pools that they describe."""
    try:
        found = load_all(config=config)
        return found, load_pools(next(each for each in found if isinstance(each, PoolSettings)))
    except SettingsError as error:
        _fail(error)


def _fail(error: SettingsError) -> NoReturn:
    print(f"flotilla: {error}", file=sys.stderr)
    raise typer.Exit(ExitCode.USAGE) from error
