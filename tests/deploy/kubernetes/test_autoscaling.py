"""The ScaledObjects: KEDA's scalers take any `metadata`, so what stands there is checked here."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy.kubernetes.manifests import COMPOSITIONS, composed, container_of, name_of

# What KEDA's documentation (2.16) lists of the scaler metrics-api, as far as ours may need it.
FIELDS = {
    "activationTargetValue", "authMode", "format", "targetValue", "unsafeSsl", "url",
    "valueLocation",
}  # fmt: skip
SCALED = [
    name
    for name, (overlay, components) in COMPOSITIONS.items()
    if overlay == "keda" or "keda" in components
]


def scaled_object(name: str) -> Any:
    (found,) = (each for each in composed(name) if each["kind"] == "ScaledObject")
    return found["spec"]


def triggers(name: str) -> list[Any]:
    found = scaled_object(name)["triggers"]
    assert found
    return found  # type: ignore[no-any-return]


def autoscaled(name: str) -> tuple[str, int, int]:
    """Model, min and max that the maintenance process is given."""
    (value,) = (
        variable["value"]
        for manifest in composed(name)
        if manifest["kind"] == "Deployment"
        for variable in container_of(manifest)["env"]
        if variable["name"] == "FLOTILLA_AUTOSCALE"
    )
    model, _, limits = value.partition("=")
    lowest, _, highest = limits.partition(":")
    return model, int(lowest), int(highest)


@pytest.mark.parametrize("name", SCALED)
def test_triggers_say_what_their_scaler_understands(name: str) -> None:
    for trigger in triggers(name):
        assert trigger["type"] == "metrics-api"
        assert trigger["metadata"].keys() <= FIELDS


@pytest.mark.parametrize("name", SCALED)
def test_autoscaler_and_keda_have_the_same_limits(name: str) -> None:
    spec = scaled_object(name)
    _, lowest, highest = autoscaled(name)
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (lowest, highest)


@pytest.mark.parametrize("name", SCALED)
def test_nobody_but_keda_sets_the_number_of_workers(name: str) -> None:
    (worker,) = (each for each in composed(name) if name_of(each) == "Deployment/worker")
    assert "replicas" not in worker["spec"]


def test_as_many_pods_as_the_autoscaler_wants() -> None:
    (trigger,) = triggers("keda")
    # desired = ceil(value / target); any value above 0 wakes the first one.
    assert trigger["metricType"] == "AverageValue"
    assert trigger["metadata"]["targetValue"] == "1"
    assert trigger["metadata"]["activationTargetValue"] == "0"
    assert trigger["metadata"]["url"].endswith(f"/autoscale/{autoscaled('keda')[0]}")


def test_the_policy_alone_says_how_long_to_wait() -> None:
    spec = scaled_object("keda")
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert spec["cooldownPeriod"] == 0
    for direction in ("scaleUp", "scaleDown"):
        assert behavior[direction]["stabilizationWindowSeconds"] == 0
        assert behavior[direction]["policies"][0]["value"] >= spec["maxReplicaCount"]
    assert "fallback" not in spec  # it would make an unanswered question an order
