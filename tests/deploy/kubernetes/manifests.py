"""Builds the overlays of compose/kubernetes with kustomize, also with components added."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.settings import ROOT

FOLDER = ROOT / "compose" / "kubernetes"
OVERLAYS = tuple(sorted(path.name for path in (FOLDER / "overlays").iterdir()))

COMPOSITIONS = {
    **{overlay: (overlay, ()) for overlay in OVERLAYS},
    "gpu, scaled, monitoring": ("gpu", ("keda", "monitoring")),
}
"""Name -> overlay and the components added to it; together they contain every component."""

Manifest = dict[str, Any]


@cache
def _kustomize() -> tuple[str, ...]:
    """Return the command that builds a folder; .ci/run unpacks Debian's kustomize if needed."""
    unpacked = ROOT / ".cache" / "debs" / "usr" / "bin" / "kustomize"
    if kustomize := shutil.which("kustomize") or (unpacked.exists() and str(unpacked)):
        return (kustomize, "build")
    if kubectl := shutil.which("kubectl"):
        return (kubectl, "kustomize")
    pytest.skip(
        "neither kustomize nor kubectl is installed; on Debian: "
        "tests/deploy/trixie-debs.sh .cache/debs kustomize"
    )


def build(folder: Path) -> list[Manifest]:
    """Return the objects of a kustomization."""
    built = subprocess.run(
        [*_kustomize(), str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert built.returncode == 0, built.stderr
    assert not built.stderr, built.stderr  # warnings, such as of deprecated fields
    return [manifest for manifest in yaml.safe_load_all(built.stdout) if manifest]


@cache
def _composed(name: str) -> tuple[Manifest, ...]:
    overlay, components = COMPOSITIONS[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        above = os.path.relpath(FOLDER, folder)  # kustomize takes no absolute paths
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": "flotilla",
            "resources": [f"{above}/overlays/{overlay}"],
            "components": [f"{above}/components/{component}" for component in components],
        }
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        return tuple(build(folder))


def composed(name: str) -> list[Manifest]:
    """Return the objects of one of COMPOSITIONS; callers must not change them."""
    return list(_composed(name))


def name_of(manifest: Manifest) -> str:
    """Return kind and name, for messages."""
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


def workloads(manifests: list[Manifest]) -> Iterator[Manifest]:
    """Yield the objects with a pod template."""
    return (each for each in manifests if each["kind"] == "Deployment")


def container_of(workload: Manifest) -> Manifest:
    """Return the only container of a workload's pods."""
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return container  # type: ignore[no-any-return]
