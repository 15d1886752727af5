"""Finds references between manifests that lead nowhere, which an API server would accept."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

from tests.deploy.kubernetes.manifests import FOLDER, Manifest, name_of, workloads

Selector = dict[str, Any]


def dangling(manifests: list[Manifest]) -> list[str]:
    """Return a line for each reference to something that does not exist."""
    names = Counter(map(name_of, manifests))
    found = [f"{name} is defined {times} times" for name, times in names.items() if times > 1]
    for manifest in manifests:
        if check := _CHECKS.get(manifest["kind"]):
            found += [f"{name_of(manifest)}: {line}" for line in check(manifest, manifests)]
        if manifest["kind"] != "Namespace" and _namespace(manifest) not in names:
            found.append(f"{name_of(manifest)}: no {_namespace(manifest)}")
    return found


def user_secrets() -> set[str]:
    """Return the Secrets that README.md lets the user create, as `Secret/name/key`."""
    text = (FOLDER / "README.md").read_text().replace("\\\n", " ")
    option = r'--from-[^\s=]+=[^\s=]+=(?:"[^"]*"|\S+)'
    made = re.findall(rf"create secret generic (\S+)((?: +{option})+)", text)
    keys = re.compile(r"--from-(?:literal|file)=([^=\s]+)=")
    return {f"Secret/{name}/{key}" for name, options in made for key in keys.findall(options)}


def _workload(workload: Manifest, manifests: list[Manifest]) -> Iterator[str]:
    template = workload["spec"]["template"]
    pod, labels = template["spec"], template["metadata"]["labels"]
    if not _selects(workload["spec"]["selector"], labels):
        yield "its selector does not select its own pods"
    for spread in pod.get("topologySpreadConstraints", ()):
        if not _selects(spread["labelSelector"], labels):
            yield "spreads pods that are not its own"
    if service := workload["spec"].get("serviceName"):
        yield from _missing(f"Service/{service}", manifests)
    yield from _missing(f"ServiceAccount/{pod['serviceAccountName']}", manifests)
    volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
    claims = workload["spec"].get("volumeClaimTemplates", ())
    mounted: set[str] = set()
    for container in pod["containers"]:
        mounted |= {mount["name"] for mount in container.get("volumeMounts", ())}
        ports = {port["name"] for port in container.get("ports", ())}
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = container.get(name, {})
            target = probe.get("httpGet") or probe.get("tcpSocket")
            if target and target["port"] not in ports:
                yield f"{name} uses an undefined port {target['port']}"
        for source in container.get("envFrom", ()):
            yield from _missing(f"ConfigMap/{source['configMapRef']['name']}", manifests)
        for variable in container.get("env", ()):
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                yield from _no_secret(reference["name"], reference["key"], manifests)
    for volume in volumes.values():
        if "secret" in volume:
            for item in volume["secret"]["items"]:
                yield from _no_secret(volume["secret"]["secretName"], item["key"], manifests)
        if claim := volume.get("persistentVolumeClaim"):
            yield from _missing(f"PersistentVolumeClaim/{claim['claimName']}", manifests)
    existing = set(volumes) | {claim["metadata"]["name"] for claim in claims}
    if mounted != existing:
        yield f"has volumes {sorted(existing)}, mounts {sorted(mounted)}"


def _service(service: Manifest, manifests: list[Manifest]) -> Iterator[str]:
    selector = {"matchLabels": service["spec"]["selector"]}
    ports = [port["targetPort"] for port in service["spec"]["ports"]]
    yield from _ports_of_pods(selector, ports, manifests)


def _budget(budget: Manifest, manifests: list[Manifest]) -> Iterator[str]:
    yield from _ports_of_pods(budget["spec"]["selector"], [], manifests)


def _policy(policy: Manifest, manifests: list[Manifest]) -> Iterator[str]:
    spec = policy["spec"]
    named = [
        port["port"]
        for rule in spec.get("ingress", ())
        for port in rule.get("ports", ())
        if isinstance(port["port"], str)
    ]
    yield from _ports_of_pods(spec["podSelector"], named, manifests)
    for rule in spec.get("ingress", ()):
        for peer in rule.get("from", ()):
            if "podSelector" in peer:
                yield from _ports_of_pods(peer["podSelector"], [], manifests)


def _scaled(scaled: Manifest, manifests: list[Manifest]) -> Iterator[str]:
    target = scaled["spec"]["scaleTargetRef"]
    yield from _missing(f"{target.get('kind', 'Deployment')}/{target['name']}", manifests)
    for trigger in scaled["spec"]["triggers"]:
        if reference := trigger.get("authenticationRef"):
            kind = reference.get("kind", "TriggerAuthentication")
            yield from _missing(f"{kind}/{reference['name']}", manifests)
        for name in ("url", "address"):
            if where := trigger["metadata"].get(name):
                yield from _no_address(where, manifests)


def _authentication(authentication: Manifest, manifests: list[Manifest]) -> Iterator[str]:
    for reference in authentication["spec"]["secretTargetRef"]:
        yield from _no_secret(reference["name"], reference["key"], manifests)


def _service_monitor(monitor: Manifest, manifests: list[Manifest]) -> Iterator[str]:
    services = [
        each
        for each in manifests
        if each["kind"] == "Service"
        and _selects(monitor["spec"]["selector"], each["metadata"]["labels"])
    ]
    if not services:
        yield "selects no Service"
    for endpoint in monitor["spec"]["endpoints"]:
        for service in services:
            if endpoint["port"] not in {port["name"] for port in service["spec"]["ports"]}:
                yield f"{name_of(service)} has no port {endpoint['port']}"
        if authorization := endpoint.get("authorization"):
            credentials = authorization["credentials"]
            yield from _no_secret(credentials["name"], credentials["key"], manifests)


def _pod_monitor(monitor: Manifest, manifests: list[Manifest]) -> Iterator[str]:
    ports = [endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]]
    yield from _ports_of_pods(monitor["spec"]["selector"], ports, manifests)


_CHECKS = {
    "Deployment": _workload,
    "StatefulSet": _workload,
    "Service": _service,
    "PodDisruptionBudget": _budget,
    "NetworkPolicy": _policy,
    "ScaledObject": _scaled,
    "TriggerAuthentication": _authentication,
    "ServiceMonitor": _service_monitor,
    "PodMonitor": _pod_monitor,
}


def _ports_of_pods(
    selector: Selector, ports: Iterable[str], manifests: list[Manifest]
) -> Iterator[str]:
    """Check that the selector selects pods and that these have the ports."""
    pods = [
        workload
        for workload in workloads(manifests)
        if _selects(selector, workload["spec"]["template"]["metadata"]["labels"])
    ]
    if not pods:
        yield f"selects no pods: {selector}"
    for workload in pods:
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        existing = {port["name"] for port in container.get("ports", ())}
        yield from (f"{name_of(workload)} has no port {p}" for p in ports if p not in existing)


def _selects(selector: Selector, labels: dict[str, str]) -> bool:
    """Evaluate a LabelSelector with equality and In only; an empty one selects all."""
    expressions = selector.get("matchExpressions", ())
    assert all(expression["operator"] == "In" for expression in expressions)
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(expression["key"]) in expression["values"] for expression in expressions
    )


def _missing(name: str, manifests: list[Manifest]) -> Iterator[str]:
    if name not in map(name_of, manifests):
        yield f"no {name}"


def _no_secret(name: str, key: str, manifests: list[Manifest]) -> Iterator[str]:
    ours = {
        f"{name_of(each)}/{key}"
        for each in manifests
        if each["kind"] == "Secret"
        for key in {**each.get("data", {}), **each.get("stringData", {})}
    }
    if f"Secret/{name}/{key}" not in ours | user_secrets():
        yield f"no Secret/{name} with {key}, and README.md has no command that creates it"


def _no_address(where: str, manifests: list[Manifest]) -> Iterator[str]:
    """Check an address: KEDA runs in another namespace, so it must name the namespace.

    The form is `<service>.<namespace>.svc:<port>`.
    """
    address = urlsplit(where if "//" in where else f"//{where}")
    existing = {
        f"{each['metadata']['name']}.{each['metadata']['namespace']}.svc:{port['port']}"
        for each in manifests
        if each["kind"] == "Service"
        for port in each["spec"]["ports"]
    }
    if address.netloc not in existing:
        yield f"no Service at {address.netloc}"


def _namespace(manifest: Manifest) -> str:
    return f"Namespace/{manifest['metadata'].get('namespace')}"
