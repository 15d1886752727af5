"""Manifests are valid by the schemas of Kubernetes, KEDA and the Prometheus operator, strictly."""

from __future__ import annotations

import pytest

from tests.deploy.kubernetes.manifests import COMPOSITIONS, FOLDER, composed, name_of

pytest.importorskip("kubernetes_validate", reason="needs the schemas of the extra `deploy`")
from tests.deploy.kubernetes.schemas import NEWEST, OLDEST, problems


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_manifests_are_valid(name: str, version: str) -> None:
    found = {name_of(each): problems(each, version) for each in composed(name)}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_every_component_is_tried() -> None:
    used = {component for _, components in COMPOSITIONS.values() for component in components}
    kustomizations = [path.read_text() for path in FOLDER.glob("overlays/*/kustomization.yaml")]
    there = {path.name for path in (FOLDER / "components").iterdir()}
    assert {
        component
        for component in there
        if component in used or any(f"components/{component}\n" in text for text in kustomizations)
    } == there


def test_a_mistake_is_found() -> None:
    """In an object of Kubernetes and in those of the two operators."""
    for kind in ("Deployment", "ScaledObject", "ServiceMonitor"):
        manifest = next(
            each for name in COMPOSITIONS for each in composed(name) if each["kind"] == kind
        )
        assert problems(manifest) == []
        assert problems(manifest | {"spec": {"replica": 2}}), kind
