"""The maintenance process: where messages go, what Celery does not decode, its liveness file."""

from __future__ import annotations

import os
import ssl
import time
from pathlib import Path

import pytest
from kombu import Connection

from gateway.maintenance import liveness_file
from gateway.maintenance.broker import broker, celery_redis_url
from gateway.maintenance.celery_app import create_app
from shared.platform.settings import drop_variables
from tests.harness.settings import Settings

# The fleet's Redis -> the maintenance process's, and how Celery writes that.
URLS = [
    ("redis://host", "redis://host/1", "redis://host:6379/1"),
    ("redis://host:6380/0", "redis://host:6380/1", "redis://host:6380/1"),
    ("redis://host/4", "redis://host/5", "redis://host:6379/5"),
    ("redis://host/4?db=7", "redis://host/8", "redis://host:6379/8"),
    ("rediss://host?db=7&ssl_ca_certs=/ca", "rediss://host/8?ssl_ca_certs=%2Fca", None),
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
    assert all(prefix.startswith("flotilla:celery:") for prefix in prefixes)


def test_variables_that_celery_obeys_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://somebody-elses/0")
    monkeypatch.setenv("NOT_CELERY_BROKER_URL", "stays")
    drop_variables("CELERY_")
    app = create_app(Settings(redis_url="redis://ours/0"), lambda name: None)
    assert app.connection_for_write().hostname == "ours"
    assert os.environ["NOT_CELERY_BROKER_URL"] == "stays"


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
