"""Finds names in manifests that lead nowhere, which an API server would accept."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from tests.deploy.kubernetes.manifests import FOLDER, Manifest, name_of, workloads

_NAMED = {
    "authenticationRef": ("TriggerAuthentication", "name"),
    "configMapRef": ("ConfigMap", "name"),
    "configMap": ("ConfigMap", "name"),
    "persistentVolumeClaim": ("PersistentVolumeClaim", "claimName"),
    "scaleTargetRef": ("Deployment", "name"),
}
"""Field -> the kind of object that it refers to, and where in it the name stands."""


def dangling(manifests: list[Manifest]) -> list[str]:
    """Return a line for each reference to something that does not exist."""
    names = Counter(map(name_of, manifests))
    found = [f"{name} is defined {times} times" for name, times in names.items() if times > 1]
    secrets = user_secrets() | {
        f"{name_of(each)}/{key}"
        for each in manifests
        if each["kind"] == "Secret"
        for key in {**each.get("data", {}), **each.get("stringData", {})}
    }
    addresses = {
        f"{each['metadata']['name']}.{each['metadata']['namespace']}.svc:{port['port']}"
        for each in manifests
        if each["kind"] == "Service"
        for port in each["spec"]["ports"]
    }
    pods = [each["spec"]["template"] for each in workloads(manifests)]
    services = [each for each in manifests if each["kind"] == "Service"]
    labelled = [each["metadata"]["labels"] for each in (*pods, *services)]
    containers = [container for pod in pods for container in pod["spec"]["containers"]]
    of_pods = {port["name"] for each in containers for port in each.get("ports", ())}
    of_services = {port["name"] for each in services for port in each["spec"]["ports"]}
    for manifest in manifests:
        ports = of_services if manifest["kind"] == "ServiceMonitor" else of_pods
        wrong = [name for name in _names(manifest) if name not in names]
        wrong += [secret for secret in _secrets(manifest) if secret not in secrets]
        wrong += [address for address in _addresses(manifest) if address not in addresses]
        wrong += [f"port {port}" for port in _ports(manifest) if port not in ports]
        found += [f"{name_of(manifest)}: no {name}" for name in wrong]
        found += [f"{name_of(manifest)}: {line}" for line in _selected(manifest, labelled)]
    return found


def user_secrets() -> set[str]:
    """Return the Secrets that README.md lets the user create, as `Secret/name/key`."""
    text = (FOLDER / "README.md").read_text().replace("\\\n", " ")
    option = r'--from-[^\s=]+=[^\s=]+=(?:"[^"]*"|\S+)'
    made = re.findall(rf"create secret generic (\S+)((?: +{option})+)", text)
    keys = re.compile(r"--from-(?:literal|file)=([^=\s]+)=")
    return {f"Secret/{name}/{key}" for name, options in made for key in keys.findall(options)}


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every field of a manifest, however deep."""
    if isinstance(value, dict):
        for name, inside in value.items():
            yield name, inside
            yield from _fields(inside)
    elif isinstance(value, list):
        for each in value:
            yield from _fields(each)


def _names(manifest: Manifest) -> Iterator[str]:
    if manifest["kind"] != "Namespace":
        yield f"Namespace/{manifest['metadata'].get('namespace')}"
    for field, value in _fields(manifest.get("spec", {})):
        if field in _NAMED and isinstance(value, dict):
            kind, name = _NAMED[field]
            yield f"{value.get('kind', kind)}/{value[name]}"
        elif field == "serviceAccountName":
            yield f"ServiceAccount/{value}"


def _secrets(manifest: Manifest) -> Iterator[str]:
    for field, value in _fields(manifest.get("spec", {})):
        if field in {"secretKeyRef", "credentials"}:
            yield f"Secret/{value['name']}/{value['key']}"
        elif field == "secretTargetRef":
            yield from (f"Secret/{each['name']}/{each['key']}" for each in value)
        elif field == "secret":
            yield from (f"Secret/{value['secretName']}/{item['key']}" for item in value["items"])


def _addresses(manifest: Manifest) -> Iterator[str]:
    """KEDA runs in another namespace, so its addresses are `<service>.<namespace>.svc:<port>`."""
    for trigger in manifest.get("spec", {}).get("triggers", ()):
        yield urlsplit(trigger["metadata"]["url"]).netloc


def _selected(manifest: Manifest, labelled: list[dict[str, str]]) -> Iterator[str]:
    """Yield the selectors that select no pod and no Service."""
    for field, value in _fields(manifest.get("spec", {})):
        if field in {"selector", "labelSelector", "podSelector"}:
            plain = not {"matchLabels", "matchExpressions"} & value.keys()
            wanted = value if plain else value.get("matchLabels", {})
            if not any(wanted.items() <= labels.items() for labels in labelled):
                yield f"selects nothing by {wanted}"


def _ports(manifest: Manifest) -> Iterator[str]:
    for field, value in _fields(manifest.get("spec", {})):
        if field in {"port", "targetPort"} and isinstance(value, str):
            yield value
