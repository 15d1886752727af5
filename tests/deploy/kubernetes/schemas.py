"""Validates manifests against the schemas of Kubernetes, KEDA and the Prometheus operator.

The schemas come from Python packages. Kubernetes': the files of kubernetes-validate, whose program
is not used because it stops at an object's first error and accepts unknown kinds. Custom
resources': the models of cloudcoil, which were generated from their CRDs.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from cloudcoil.models.keda import v1alpha1 as keda
from cloudcoil.models.prometheus_operator import v1 as prometheus_operator
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.deploy.kubernetes.manifests import Manifest

OLDEST, NEWEST = "1.30", "1.37"
"""The range of supported Kubernetes versions."""

_CUSTOM = {
    ("keda.sh/v1alpha1", "ScaledObject"): keda.ScaledObject,
    ("keda.sh/v1alpha1", "TriggerAuthentication"): keda.TriggerAuthentication,
    ("monitoring.coreos.com/v1", "ServiceMonitor"): prometheus_operator.ServiceMonitor,
    ("monitoring.coreos.com/v1", "PodMonitor"): prometheus_operator.PodMonitor,
}


def problems(manifest: Manifest, version: str = NEWEST) -> list[str]:
    """Return all errors of a manifest; an unknown kind is an error."""
    api_version, kind = str(manifest.get("apiVersion")), str(manifest.get("kind"))
    validator = _validator(api_version, kind, version)
    if validator is None:
        return [f"Kubernetes {version} with KEDA and Prometheus has no {api_version} {kind}"]
    errors = validator.iter_errors(manifest)
    return [f"{error.json_path}: {error.message[:300]}" for error in errors]


@cache
def _validator(api_version: str, kind: str, version: str) -> Draft202012Validator | None:
    if model := _CUSTOM.get((api_version, kind)):
        return Draft202012Validator(_strict(model.model_json_schema(by_alias=True)))
    folder = _folder(version)
    group = re.sub(r"(\.[^/]*)?/", "-", api_version)  # networking.k8s.io/v1 -> networking-v1
    schema = folder / f"{kind.lower()}-{group}.json"
    if not schema.is_file():
        return None
    return Draft202012Validator(json.loads(schema.read_text()), registry=_definitions(version))


@cache
def _definitions(version: str) -> Registry[Any]:
    definitions = json.loads((_folder(version) / "_definitions.json").read_text())
    return Registry().with_resource(definitions["$id"], Resource.from_contents(definitions))


def _folder(version: str) -> Any:
    schemas = files("kubernetes_validate") / "kubernetes-json-schema"
    return schemas / f"v{version}.0-local-strict"


def _strict(schema: Any) -> Any:
    """Return the schema without additional properties of objects."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {name: _strict(value) for name, value in schema.items()}
    if "properties" in strict and schema.get("type") == "object":
        strict.setdefault("additionalProperties", False)
    return strict
