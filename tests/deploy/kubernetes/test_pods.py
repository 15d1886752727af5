"""What the pods may do, how long they get to end, and that they are the images of compose/."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.deploy.kubernetes.images import images_of_compose
from tests.deploy.kubernetes.manifests import (
    COMPOSITIONS,
    Manifest,
    composed,
    container_of,
    name_of,
    workloads,
)
from tests.harness.settings import Settings

HAND_BACK_S = 10
LOADING_S = 3600
"""After so long without a sign a worker that loads is taken for lost."""
MARGIN_S = 10
"""For the last words of a process, and a slow node."""
SIZES = {"Mi": 2**20, "Gi": 2**30}


def every_workload() -> list[tuple[str, Manifest]]:
    return [
        (f"{name}: {name_of(workload)}", workload)
        for name in COMPOSITIONS
        for workload in workloads(composed(name))
    ]


def deployments(name: str) -> list[Manifest]:
    """A Deployment as each composition has it."""
    return [each for _, each in every_workload() if each["metadata"]["name"] == name]


def pod_of(workload: Manifest) -> Any:
    return workload["spec"]["template"]["spec"]


def settings_of(workload: Manifest, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """As the process would load them."""
    for variable in container_of(workload).get("env", ()):
        if "value" in variable:
            monkeypatch.setenv(variable["name"], variable["value"])
    (shared,) = (each for each in composed("cpu") if each["kind"] == "ConfigMap")
    for name, value in shared["data"].items():
        monkeypatch.setenv(name, value)
    return Settings()


def size(quantity: str) -> int:
    return int(quantity[:-2]) * SIZES[quantity[-2:]]


def test_pods_may_do_next_to_nothing() -> None:
    """Pod Security Standard `restricted`, and what it does not ask for."""
    for name, workload in every_workload():
        pod, container = pod_of(workload), container_of(workload)
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["runAsUser"] == security["runAsGroup"] == security["fsGroup"], name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert pod["automountServiceAccountToken"] is False, name
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod.keys(), name
        volumes = pod.get("volumes", ())
        kinds = {kind for volume in volumes for kind in volume.keys() - {"name"}}
        assert kinds <= {"configMap", "emptyDir", "secret", "persistentVolumeClaim"}, name
        assert container["resources"]["requests"].keys() >= {"cpu", "memory"}, name
        assert "memory" in container["resources"]["limits"], name


def test_the_namespace_holds_pods_to_that() -> None:
    for name in COMPOSITIONS:
        (namespace,) = (each for each in composed(name) if each["kind"] == "Namespace")
        assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_no_variables_of_services() -> None:
    """Of a Service `flotilla-x` they would be settings that are not known."""
    assert all(pod_of(each)["enableServiceLinks"] is False for _, each in every_workload())


def test_no_process_is_pid_1() -> None:
    """As such they would ignore a SIGTERM before they have a handler; see restricted.yaml."""
    assert all(pod_of(each)["shareProcessNamespace"] is True for _, each in every_workload())


def test_variables_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {f"FLOTILLA_{name.upper()}" for name in Settings.model_fields}
    for name, workload in every_workload():
        with monkeypatch.context() as patch:
            settings_of(workload, patch)
        names = [variable["name"] for variable in container_of(workload)["env"]]
        assert len(set(names)) == len(names)
        unknown = {each for each in names if each.startswith("FLOTILLA_")} - known
        assert unknown == set(), name
        assert "FLOTILLA_REDIS_URL" in names  # from a Secret, so not loaded above


def test_a_worker_may_drain_before_it_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    for worker in deployments("worker"):
        with monkeypatch.context() as patch:
            drain_s = settings_of(worker, patch).drain_deadline_s
        assert drain_s > Settings().drain_deadline_s
        grace_s = pod_of(worker)["terminationGracePeriodSeconds"]
        assert grace_s >= drain_s + HAND_BACK_S + MARGIN_S


def test_a_gateway_may_end_its_answers_before_it_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for gateway in deployments("gateway"):
        (command, pause_s) = container_of(gateway)["lifecycle"]["preStop"]["exec"]["command"]
        assert command == "sleep"
        with monkeypatch.context() as patch:
            answers_s = settings_of(gateway, patch).grace_s
        grace_s = pod_of(gateway)["terminationGracePeriodSeconds"]
        assert grace_s >= int(pause_s) + answers_s + MARGIN_S


def test_a_worker_may_load_for_as_long_as_it_is_thought_to_live() -> None:
    for worker in deployments("worker"):
        probe = container_of(worker)["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] == LOADING_S
        assert worker["spec"]["progressDeadlineSeconds"] > LOADING_S


def test_rollouts_need_no_hardware_for_one_more_worker() -> None:
    for worker in deployments("worker"):
        assert worker["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0
    for gateway in deployments("gateway"):
        assert gateway["spec"]["replicas"] >= 2
        assert gateway["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_memory_that_is_a_volume_fits_the_limit() -> None:
    for name, workload in every_workload():
        limit = size(container_of(workload)["resources"]["limits"]["memory"])
        in_memory = [
            size(volume["emptyDir"]["sizeLimit"])
            for volume in pod_of(workload)["volumes"]
            if volume.get("emptyDir", {}).get("medium") == "Memory"
        ]
        assert sum(in_memory) <= limit / 2, name


def test_a_gpu_is_a_limit() -> None:
    workers = {
        "nvidia.com/gpu" in container_of(worker)["resources"]["limits"]: container_of(worker)
        for worker in deployments("worker")
    }
    assert workers[True]["image"].startswith("flotilla-worker-gpu:")
    assert workers[False]["image"].startswith("flotilla-worker:")


def test_images_and_users_are_those_of_compose() -> None:
    images = images_of_compose()
    for name, workload in every_workload():
        security = pod_of(workload)["securityContext"]
        user = f"{security['runAsUser']}:{security['runAsGroup']}"
        assert images[container_of(workload)["image"]].users == {user}, name


def test_folders_that_images_write_to_are_volumes() -> None:
    """The root file system is read-only."""
    images = images_of_compose()
    for name, workload in every_workload():
        text = images[container_of(workload)["image"]].dockerfile.read_text()
        written = set(re.findall(r"(?:^VOLUME | HOME=)(/\S+)", text, re.MULTILINE))
        mounted = {mount["mountPath"] for mount in container_of(workload)["volumeMounts"]}
        assert written, name
        assert written <= mounted, name
