"""How Celery is set up for the maintenance process, where its messages go, and its health check."""

from __future__ import annotations

import asyncio
import itertools
import os
import ssl
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from kombu import Connection
from kombu.exceptions import DecodeError
from kombu.serialization import loads
from redis import Redis

from gateway.maintenance import housekeeping, liveness_file
from gateway.maintenance.broker import broker, celery_redis_url
from gateway.maintenance.celery_app import CONTENT_TYPE, SERIALIZER, configuration, create_app
from gateway.maintenance.maintenance_tasks import TIMEOUT_S, celery_intervals, timer_intervals
from gateway.maintenance.process import repeat
from shared.platform.settings import SettingsError, drop_variables, load_settings
from shared.store.redis import keys
from tests.harness.settings import ROOT, Settings, child_environment

# The fleet's Redis -> the maintenance process's, and how Celery writes that.
URLS = [
    ("redis://host", "redis://host/1", "redis://host:6379/1"),
    ("redis://host:6380/0", "redis://host:6380/1", "redis://host:6380/1"),
    ("redis://host/4", "redis://host/5", "redis://host:6379/5"),
    ("redis://host/4?db=7", "redis://host/8", "redis://host:6379/8"),
    ("redis://host?db=7&health_check_interval=9", "redis://host/8?health_check_interval=9", None),
    ("redis://[::1]:6380/0", "redis://[::1]:6380/1", "redis://[::1]:6380/1"),
    ("redis://:p%40ss@host/0", "redis://:p%40ss@host/1", "redis://:p%40ss@host:6379/1"),
    ("redis://me:p%2Fs@host/0", "redis://me:p%2Fs@host/1", "redis://me:p%2Fs@host:6379/1"),
    ("rediss://host/0", "rediss://host/1", "redis://host:6379/1"),
    ("unix:///run/r.sock", "unix:///run/r.sock?db=1", "redis+socket:///run/r.sock?virtual_host=1"),
    (
        "unix://:secret@/run/r.sock?db=2",
        "unix://:secret@/run/r.sock?db=3",
        "redis+socket://:secret@/run/r.sock?virtual_host=3",
    ),
]


@pytest.mark.parametrize(("fleet", "own", "celery"), URLS)
def test_celerys_database_is_the_one_after_the_fleets(
    fleet: str, own: str, celery: str | None
) -> None:
    settings = Settings(redis_url=fleet)
    assert celery_redis_url(settings) == own
    if celery is not None:
        assert broker(settings).url == celery


@pytest.mark.parametrize(("fleet", "own", "celery"), URLS)
def test_celery_understands_what_redis_py_understands(
    fleet: str, own: str, celery: str | None
) -> None:
    where = broker(Settings(redis_url=fleet))
    with Redis.from_url(own) as client:
        ours = client.connection_pool.connection_kwargs
    connection = Connection(where.url, ssl=where.ssl or False)
    channel_class = connection.transport_cls
    assert channel_class == "redis"
    info = connection.info()
    if own.startswith("unix"):
        assert ours["path"] in where.url
        assert f"virtual_host={ours['db']}" in where.url
    else:
        assert (info["hostname"], int(info["virtual_host"])) == (ours["host"], ours["db"])
        assert (info["userid"], info["password"]) == (ours.get("username"), ours.get("password"))


@pytest.mark.parametrize("url", ["redis://celery:6390/0", "redis://celery:6390"])
def test_a_database_of_its_own(url: str) -> None:
    settings = Settings(redis_url="redis://fleet/0", maintenance_redis_url=url)
    assert celery_redis_url(settings) == url
    assert broker(settings).url == "redis://celery:6390/0"


def test_another_kind_of_broker_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^FLOTILLA_MAINTENANCE_REDIS_URL: "):
        broker(Settings(maintenance_redis_url="amqp://host"))
    with pytest.raises(SettingsError, match="must start with redis://"):
        load_settings(Settings, redis_url="http://host")


def test_tls_is_checked_unless_it_is_told_otherwise() -> None:
    assert broker(Settings(redis_url="redis://host")).ssl is None
    assert broker(Settings(redis_url="rediss://host")).ssl == {
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
    }
    url = "rediss://host?ssl_ca_certs=/ca.pem&ssl_check_hostname=false&ssl_cert_reqs=none"
    where = broker(Settings(redis_url=url))
    assert where.ssl == {
        "ssl_cert_reqs": "none",
        "ssl_check_hostname": False,
        "ssl_ca_certs": "/ca.pem",
    }
    assert Connection(where.url, ssl=where.ssl).ssl["ssl_cert_reqs"] != ssl.CERT_REQUIRED


def test_beside_a_cluster_messages_are_in_memory_or_in_a_redis_that_is_named() -> None:
    settings = Settings(redis_url="redis+cluster://:secret@a:1,b:2")
    assert broker(settings).url == "memory://"
    named = settings.model_copy(update={"maintenance_redis_url": "redis://c/1"})
    assert broker(named).url == "redis://c:6379/1"
    assert "secret" not in broker(named).prefix


def test_fleets_that_share_a_database_do_not_share_keys() -> None:
    urls = ["redis://a/0", "redis://a/2", "redis://b/0", "redis://a:1/0", "unix:///a"]
    shared = "redis://celery/0"
    prefixes = [
        broker(Settings(redis_url=url, maintenance_redis_url=shared)).prefix for url in urls
    ]
    assert len(set(prefixes)) == len(urls)
    again = Settings(redis_url="redis://:secret@a/0", maintenance_redis_url=shared)
    assert broker(again).prefix == prefixes[0]
    assert "secret" not in broker(again).prefix
    assert all(keys.parse(prefix) is None for prefix in prefixes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"repair": 30.0, "prune": 600.0, "webhooks": 5.0}),
        (
            {"repair_interval_s": 2, "autoscale": "m=0:3"},
            {"repair": 2.0, "prune": 600.0, "webhooks": 5.0},
        ),
    ],
)
def test_each_task_has_its_interval(changes: dict[str, str], expected: dict[str, float]) -> None:
    settings = Settings(**changes)  # type: ignore[arg-type]
    assert celery_intervals(settings) == expected
    performed: list[str] = []
    app = create_app(settings, performed.append)
    app.finalize()
    schedule = app.conf.beat_schedule
    assert {name: entry["schedule"] for name, entry in schedule.items()} == expected
    for name, entry in schedule.items():
        assert entry["task"] == name
        assert entry["schedule"] < entry["options"]["expires"] < entry["schedule"] + 60
        app.tasks[name]()
    assert performed == list(expected)


def test_the_autoscaler_runs_on_a_timer_without_celery() -> None:
    assert timer_intervals(Settings(), Settings().described) == {"usage": 1.0}
    settings = Settings(autoscale="m=0:3", autoscale_tick_s=4)
    assert timer_intervals(settings, settings.described) == {
        "usage": 1.0,
        "autoscale": 4.0,
    }


@pytest.mark.parametrize("body", [b"null", b"{}", b"[]", b"[[], {}]", b"[{}, [], {}]", b"not json"])
def test_a_message_that_celery_would_not_survive_is_not_decoded(body: bytes) -> None:
    create_app(Settings(), lambda name: None)
    with pytest.raises(DecodeError):
        loads(body, CONTENT_TYPE, "utf-8", accept={CONTENT_TYPE})
    assert loads(b"[[], {}, {}]", CONTENT_TYPE, "utf-8", accept={CONTENT_TYPE}) == [[], {}, {}]


async def test_a_timer_repeats_and_a_slow_call_delays_the_next() -> None:
    calls: list[float] = []
    enough = asyncio.Event()

    async def slow(name: str) -> None:
        assert name == "autoscale"
        calls.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.03)
        if len(calls) == 4:
            enough.set()

    timer = asyncio.create_task(repeat("autoscale", slow, 0.01))
    await asyncio.wait_for(enough.wait(), 10)
    timer.cancel()
    assert all(after - before >= 0.03 for before, after in itertools.pairwise(calls))


def test_a_beat_is_due_at_once_and_then_in_its_time() -> None:
    app = create_app(Settings(), lambda name: None)
    with app.connection_for_write() as connection:
        assert not connection.connected, "nothing has connected yet"
    from celery.beat import Scheduler

    scheduler = Scheduler(app=app)
    entries = scheduler.schedule
    assert set(entries) == set(celery_intervals(Settings())), "Celery has added none of its own"
    for name, entry in entries.items():
        assert entry.is_due().is_due
        after = next(entry)
        assert not after.is_due().is_due
        assert after.schedule.run_every == timedelta(seconds=celery_intervals(Settings())[name])


def test_what_celery_may_and_may_not() -> None:
    conf = create_app(Settings(), lambda name: None).conf
    assert conf.accept_content == [SERIALIZER]
    assert conf.task_serializer == SERIALIZER
    assert conf.result_backend is None
    assert conf.task_ignore_result
    assert conf.task_acks_late
    assert conf.worker_pool == "solo"
    assert not conf.worker_enable_remote_control
    assert conf.broker_connection_retry_on_startup
    assert conf.broker_connection_max_retries is None
    options = conf.broker_transport_options
    assert options["visibility_timeout"] > 5 * TIMEOUT_S
    assert options["global_keyprefix"].startswith("flotilla:celery:")


def test_every_setting_is_one_that_celery_has() -> None:
    from celery.app.defaults import flatten

    known = {name for name, _ in flatten(__import__("celery").app.defaults.NAMESPACES)}
    assert set(configuration(Settings())) <= known


def test_variables_that_celery_obeys_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://somebody-elses/0")
    monkeypatch.setenv("NOT_CELERY_BROKER_URL", "stays")
    drop_variables("CELERY_")
    app = create_app(Settings(redis_url="redis://ours/0"), lambda name: None)
    assert app.connection_for_write().hostname == "ours"
    assert os.environ["NOT_CELERY_BROKER_URL"] == "stays"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("flotilla:{0}:job:job_000", (0, "job", "job_000")),
        ("flotilla:{12}:jobs:a.tenant", (12, "jobs", "a.tenant")),
        ("flotilla:{0}:queue:pool:lane", (0, "queue", "pool:lane")),
        ("flotilla:{fleet}:workers", None),
        ("flotilla:{0}:pools", None),
        ("other:{0}:job:x", None),
    ],
)
def test_parse_key(key: str, expected: tuple[int, str, str] | None) -> None:
    assert keys.parse(key) == expected


# --- health ---


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(liveness_file.tempfile, "tempdir", None)
    return tmp_path


@pytest.mark.parametrize(("age_s", "well"), [(0, True), (30, True), (90, False), (-5, True)])
def test_the_pulse(folder: Path, age_s: float, well: bool) -> None:
    settings, other = Settings(), Settings(redis_url="redis://other/0")
    assert liveness_file.problem(settings).startswith("the liveness file was never touched")
    before = time.time() - 5
    assert not liveness_file.touched_since(settings, before)
    liveness_file.touch(settings)
    assert liveness_file.touched_since(settings, before)
    assert not liveness_file.touched_since(settings, time.time() + 60)
    assert liveness_file.path(settings).parent == folder
    at = time.time() - age_s
    os.utime(liveness_file.path(settings), (at, at))
    assert (liveness_file.problem(settings) == "") == well
    liveness_file.touch(settings)
    assert liveness_file.problem(settings) == ""
    assert liveness_file.problem(other) != "", "another fleet's"


def test_nobody_leads_the_pulse_to_another_file(folder: Path) -> None:
    victim = folder / "victim"
    victim.write_text("precious")
    os.utime(victim, (1, 1))
    liveness_file.path(Settings()).symlink_to(victim)
    with pytest.raises(OSError):
        liveness_file.touch(Settings())
    assert victim.stat().st_mtime == 1


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**child_environment(), "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_check_is_cheap_and_says_what_is_wrong(folder: Path) -> None:
    code = (
        "import runpy, sys, atexit\n"
        "sys.argv = ['maintenance', '--check']\n"
        "atexit.register(lambda: print('celery' in sys.modules, 'redis' in sys.modules))\n"
        "runpy.run_module('gateway.maintenance', run_name='__main__')\n"
    )
    done = run(code, folder)
    assert done.returncode == 1
    assert "the liveness file was never touched" in done.stderr
    assert done.stdout == "False False\n"
    liveness_file.touch(Settings())
    assert run(code, folder).returncode == 0


@pytest.mark.parametrize("module", ["gateway.app", "gateway.cli.main", "worker.__main__"])
def test_celery_stays_out_of_other_processes(module: str, folder: Path) -> None:
    done = run(f"import sys, {module}; print('celery' in sys.modules)", folder)
    assert done.stdout == "False\n", done.stderr


def test_wrong_settings_end_it_with_one_line(folder: Path) -> None:
    for name, value in (
        ("MAINTENANCE_REDIS_URL", "amqp://x"),
        ("REDIS_URL", "amqp://x"),
        ("AUTOSCALE", "nonsense"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "gateway.maintenance"],
            cwd=ROOT,
            env={**child_environment(), f"FLOTILLA_{name}": value, "TMPDIR": str(folder)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2
        assert done.stderr.startswith("flotilla maintenance: ")
        assert name in done.stderr or value in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("n", "what", "words"),
    [
        (1, "stray jobs", "1 stray job"),
        (2, "stray jobs", "2 stray jobs"),
        (1, "stray entries", "1 stray entry"),
        (1, "stray waiting", "1 stray waiting"),
    ],
)
def test_what_was_repaired_is_counted_in_words(n: int, what: str, words: str) -> None:
    assert housekeeping._count(n, what) == words
