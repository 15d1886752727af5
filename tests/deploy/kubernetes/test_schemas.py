"""Manifests are valid, strictly; and a typo anywhere in any of their kinds is found."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.kubernetes import schemas
from tests.deploy.kubernetes.manifests import COMPOSITIONS, FOLDER, Manifest, composed, name_of
from tests.deploy.kubernetes.schemas import NEWEST, OLDEST, problems

Path = tuple[str | int, ...]

KINDS = {
    "ConfigMap",
    "Deployment",
    "Namespace",
    "NetworkPolicy",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
    "PodMonitor",
    "PrometheusRule",
    "ScaledObject",
    "Secret",
    "Service",
    "ServiceAccount",
    "ServiceMonitor",
    "StatefulSet",
    "TriggerAuthentication",
}

# The fields of these are the user's own words, or a scaler's, which the schema does not know. Those
# of ours are checked in test_references.py, test_pods.py and test_autoscaling.py.
FREE = {"annotations", "data", "labels", "limits", "matchLabels", "requests"}


def one_of(kind: str) -> Manifest:
    """The longest manifest of its kind."""
    found = [
        manifest for name in COMPOSITIONS for manifest in composed(name) if manifest["kind"] == kind
    ]
    assert found, f"no {kind} is built"
    return copy.deepcopy(max(found, key=lambda manifest: len(str(manifest))))


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of everything that a schema describes."""
    if path:
        yield path
    if isinstance(value, dict) and not is_free(value, path):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


def is_free(value: dict[str, Any], path: Path) -> bool:
    match path:
        case (*_, str(key)) if key in FREE:
            return True
        case ("spec", "triggers", _, "metadata"):
            return True
        case ("spec", "selector"):  # a Service's is no LabelSelector
            return "matchLabels" not in value
    return False


def parent(manifest: Manifest, path: Path) -> Any:
    for key in path[:-1]:
        manifest = manifest[key]  # type: ignore[index]
    return manifest


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_manifests_are_valid(name: str, version: str) -> None:
    manifests = composed(name)
    assert len(manifests) > 10
    found = {name_of(each): problems(each, version) for each in manifests}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_every_kind_is_tried() -> None:
    assert {each["kind"] for name in COMPOSITIONS for each in composed(name)} == KINDS


def test_every_component_is_tried() -> None:
    used = {component for _, components in COMPOSITIONS.values() for component in components}
    kustomizations = [path.read_text() for path in FOLDER.glob("overlays/*/kustomization.yaml")]
    there = {path.name for path in (FOLDER / "components").iterdir()}
    assert {
        component
        for component in there
        if component in used or any(f"components/{component}\n" in text for text in kustomizations)
    } == there


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_misspelt_field_is_found(kind: str) -> None:
    manifest = one_of(kind)
    tried = 0
    for path in list(places(manifest)):
        if isinstance(path[-1], int):
            continue
        holder = parent(manifest, path)
        key = path[-1]
        holder[f"{key}x"] = holder.pop(key)
        assert problems(manifest), f"{kind}: {path} misspelt"
        holder[key] = holder.pop(f"{key}x")
        tried += 1
    assert tried >= 4
    assert problems(manifest) == []  # all is as it was


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_value_of_another_type_is_found(kind: str) -> None:
    manifest = one_of(kind)
    for path in list(places(manifest)):
        holder, key = parent(manifest, path), path[-1]
        kept = holder[key]
        holder[key] = [7] if isinstance(kept, dict) else {"a": {"b": [7]}}
        assert problems(manifest), f"{kind}: {path} is {type(kept).__name__}"
        holder[key] = kept
    assert problems(manifest) == []


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize(
    ("field", "change"),
    [("apiVersion", lambda word: f"{word}beta7"), ("kind", lambda word: f"{word}s"),
     ("apiVersion", lambda _: "apps/v2")],
)  # fmt: skip
def test_an_object_of_no_such_api_is_found(kind: str, field: str, change: Any) -> None:
    manifest = one_of(kind)
    manifest[field] = change(manifest[field])
    (problem,) = problems(manifest)
    assert "has no" in problem
    assert manifest[field] in problem


def test_all_problems_of_an_object_are_told() -> None:
    manifest = one_of("Deployment")
    manifest["spec"]["replica"] = 2
    manifest["spec"]["template"]["spec"]["containers"][0]["image"] = 7
    assert len(problems(manifest)) == 2


def test_the_schemas_of_custom_resources_are_the_real_ones() -> None:
    """A model without fields would find nothing wrong with anything."""
    for (api_version, kind), model in schemas._CUSTOM.items():
        definitions = model.model_json_schema(by_alias=True)["$defs"]
        assert model.model_fields["kind"].default == kind
        assert model.model_fields["api_version"].default == api_version
        assert len(definitions) > 5
