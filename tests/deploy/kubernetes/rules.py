"""Generates the PrometheusRule of components/monitoring from compose/observability/rules.

`python -m tests.deploy.kubernetes.rules` writes it; a test fails if it is out of date.
"""

from __future__ import annotations

from textwrap import indent

from tests.deploy.kubernetes.manifests import FOLDER
from tests.harness.settings import ROOT

RULES = ROOT / "compose" / "observability" / "rules" / "flotilla.yml"
MANIFEST = FOLDER / "components" / "monitoring" / "rules.yaml"

_HEAD = """\
# Made of compose/observability/rules/flotilla.yml by `python -m tests.deploy.kubernetes.rules`.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: flotilla
spec:
"""


def prometheus_rule() -> str:
    """Return the manifest; the content of a rules file is the spec of a PrometheusRule."""
    return _HEAD + indent(RULES.read_text(), "  ")


if __name__ == "__main__":
    MANIFEST.write_text(prometheus_rule())
