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
        "Secret/flotilla-observer/key",
        "Secret/flotilla-redis/url",
        "Secret/model-hub/token",
    }
    assert user_secrets() == named


POD = ("spec", "template", "spec")
CONTAINER = (*POD, "containers", 0)
COMPONENT = "app.kubernetes.io/component"


@pytest.mark.parametrize(
    ("composition", "broken", "path", "value", "message"),
    [
        ("cpu", "Deployment/gateway", (*CONTAINER, "ports", 0, "name"), "web", "no port http"),
        ("cpu", "Deployment/worker", (*POD, "serviceAccountName"), "w", "no ServiceAccount/w"),
        ("cpu", "Deployment/worker", (*CONTAINER, "env", -1, "valueFrom", "secretKeyRef", "key"),
         "uri", "no Secret/flotilla-redis/uri"),
        ("cpu", "Service/gateway", ("spec", "selector", COMPONENT), "gate", "selects nothing"),
        ("cpu", "Deployment/maintenance", ("metadata", "name"), "gateway",
         "Deployment/gateway is defined 2"),
        ("keda", "Service/gateway", ("spec", "ports", 0, "port"), 80, "no gateway.flotilla.svc"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_found(
    composition: str, broken: str, path: tuple[str | int, ...], value: Any, message: str
) -> None:
    manifests = copy.deepcopy(composed(composition))
    (holder,) = (each for each in manifests if name_of(each) == broken)
    for key in path[:-1]:
        holder = holder[key]  # type: ignore[index]
    holder[path[-1]] = value  # type: ignore[index]
    found = dangling(manifests)
    assert any(message in line for line in found), found
