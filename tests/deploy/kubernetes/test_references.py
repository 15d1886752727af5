"""Everything that manifests name exists; and what does not is found."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.deploy.kubernetes.manifests import COMPOSITIONS, composed, name_of
from tests.deploy.kubernetes.references import dangling, user_secrets


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_everything_that_is_named_is_there(name: str) -> None:
    assert dangling(composed(name)) == []


def test_readme_tells_which_secrets_to_make() -> None:
    named = {
        "Secret/flotilla-api-keys/admin-keys",
        "Secret/flotilla-api-keys/api-keys",
        "Secret/flotilla-api-keys/peppers",
        "Secret/flotilla-observer/key",
        "Secret/flotilla-redis/url",
        "Secret/model-hub/token",
    }
    assert user_secrets() == named


POD = ("spec", "template", "spec")
CONTAINER = (*POD, "containers", 0)
LABELS = ("spec", "template", "metadata", "labels")
COMPONENT = "app.kubernetes.io/component"


@pytest.mark.parametrize(
    ("composition", "broken", "path", "value", "message"),
    [
        ("cpu", "Deployment/gateway", (*LABELS, COMPONENT), "gate", "does not select its own pods"),
        ("cpu", "Deployment/gateway", (*LABELS, COMPONENT), "gate", "Service/gateway: selects no"),
        ("cpu", "Deployment/gateway", (*LABELS, COMPONENT), "gate", "Budget/gateway: selects no"),
        ("cpu", "Deployment/gateway", (*LABELS, COMPONENT), "gate", "Policy/gateway: selects no"),
        ("cpu", "Deployment/gateway", (*LABELS, COMPONENT), "gate", "spreads pods that are not"),
        ("cpu", "Deployment/gateway", (*CONTAINER, "ports", 0, "name"), "web", "uses an undefined"),
        ("cpu", "Deployment/gateway", (*CONTAINER, "ports", 0, "name"), "web", "has no port http"),
        ("cpu", "Deployment/worker", (*POD, "serviceAccountName"), "w", "no ServiceAccount/w"),
        ("cpu", "Deployment/worker", (*CONTAINER, "volumeMounts", 0, "name"), "x", "mounts ['sh"),
        ("cpu", "Deployment/worker", (*CONTAINER, "envFrom", 0, "configMapRef", "name"), "settings",
         "no ConfigMap/settings"),
        ("gpu", "Deployment/worker", (*POD, "volumes", 0, "persistentVolumeClaim", "claimName"),
         "cache", "no PersistentVolumeClaim/cache"),
        ("cpu", "Deployment/gateway", (*POD, "volumes", 0, "secret", "secretName"), "keys",
         "no Secret/keys with api-keys"),
        ("cpu", "Deployment/gateway", (*POD, "volumes", 0, "secret", "items", 0, "key"), "keys",
         "no Secret/flotilla-api-keys with keys"),
        ("cpu", "Secret/flotilla-redis", ("metadata", "name"), "r", None),
        ("cpu", "Deployment/worker", (*CONTAINER, "env", -1, "valueFrom", "secretKeyRef", "key"),
         "uri", "no Secret/flotilla-redis with uri"),
        ("cpu", "StatefulSet/redis", ("spec", "serviceName"), "r", "no Service/r"),
        ("cpu", "Service/gateway", ("metadata", "namespace"), "default", "no Namespace/default"),
        ("cpu", "NetworkPolicy/worker", ("spec", "ingress", 0, "ports", 0, "port"), "metrics",
         "Deployment/worker has no port metrics"),
        ("cpu", "NetworkPolicy/redis", ("spec", "ingress", 0, "from", 0, "podSelector",
         "matchLabels"), {"a": "b"}, "NetworkPolicy/redis: selects no pods"),
        ("cpu", "Service/redis", ("metadata", "name"), "gateway", "Service/gateway is defined 2"),
        ("keda", "ScaledObject/worker", ("spec", "scaleTargetRef", "name"), "workers",
         "no Deployment/workers"),
        ("keda", "TriggerAuthentication/flotilla-key", ("metadata", "name"), "key",
         "no TriggerAuthentication/flotilla-key"),
        ("keda", "TriggerAuthentication/flotilla-key", ("spec", "secretTargetRef", 0, "key"),
         "token", "no Secret/flotilla-observer with token"),
        ("keda", "Service/gateway", ("spec", "ports", 0, "port"), 80, "no Service at gateway.flot"),
        ("cpu, by lag, monitoring", "Service/redis", ("metadata", "name"), "r",
         "no Service at redis.flotilla.svc:6379"),
        ("cpu, by lag, monitoring", "Service/gateway", ("metadata", "labels", COMPONENT), "gate",
         "ServiceMonitor/gateway: selects no Service"),
        ("cpu, by lag, monitoring", "ServiceMonitor/gateway", ("spec", "endpoints", 0, "port"),
         "metrics", "Service/gateway has no port metrics"),
        ("cpu, by lag, monitoring", "PodMonitor/worker", ("spec", "podMetricsEndpoints", 0, "port"),
         "metrics", "Deployment/worker has no port metrics"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_found(
    composition: str, broken: str, path: tuple[str | int, ...], value: Any, message: str | None
) -> None:
    manifests = copy.deepcopy(composed(composition))
    (holder,) = (each for each in manifests if name_of(each) == broken)
    for key in path[:-1]:
        holder = holder[key]  # type: ignore[index]
    assert holder[path[-1]] != value  # type: ignore[index]
    holder[path[-1]] = value  # type: ignore[index]
    found = dangling(manifests)
    if message is None:  # README.md says how to make it: in another overlay it is the user's
        assert found == []
    else:
        assert any(message in line for line in found), found
