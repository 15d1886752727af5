"""The PrometheusRule of components/monitoring is made of compose/observability/rules.

`python -m tests.kubernetes.rules` makes it anew; a test sees to it that somebody does.
"""

from __future__ import annotations

from textwrap import indent

from tests.kubernetes.manifests import FOLDER, ROOT

RULES = ROOT / "compose" / "observability" / "rules" / "flotilla.yml"
MANIFEST = FOLDER / "components" / "monitoring" / "rules.yaml"

_HEAD = """\
# Made of compose/observability/rules/flotilla.yml by `python -m tests.kubernetes.rules`.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: flotilla
spec:
"""


def prometheus_rule() -> str:
    """The manifest; what a rules file holds is what a PrometheusRule has as its spec."""
    return _HEAD + indent(RULES.read_text(), "  ")


if __name__ == "__main__":
    MANIFEST.write_text(prometheus_rule())
