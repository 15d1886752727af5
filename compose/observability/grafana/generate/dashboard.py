"""A dashboard, in Grafana's form: rows of panels, laid out here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from panel import SOURCE, Panel

SCHEMA = 41
"""Of Grafana 12.0; later ones bring it up to date as they read it."""
COLUMNS = 24


@dataclass
class Dashboard:
    """Rows of panels, from left to right and top to bottom; a row without a heading comes first."""

    uid: str
    title: str
    description: str
    rows: Sequence[tuple[str, Sequence[Panel]]]
    variables: Sequence[dict[str, Any]] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        """Grafana's form of it."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["flotilla"],
            "schemaVersion": SCHEMA,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "annotations": {"list": [_FIRING]},
            "links": [
                {
                    "type": "dashboards",
                    "title": "Flotilla",
                    "icon": "external link",
                    "tooltip": "",
                    "tags": ["flotilla"],
                    "asDropdown": False,
                    "includeVars": True,
                    "keepTime": True,
                    "targetBlank": False,
                }
            ],
            "templating": {"list": [_DATASOURCE, *self.variables]},
            "panels": list(self._panels()),
        }

    def render(self) -> str:
        """The text of its file."""
        return json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n"

    def _panels(self) -> list[dict[str, Any]]:
        placed: list[dict[str, Any]] = []
        y = 0
        for heading, panels in self.rows:
            if heading:
                row = {"type": "row", "title": heading, "collapsed": False, "panels": []}
                place = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
                placed.append({"id": len(placed) + 1, **row, "gridPos": place})
                y += 1
            x = height = 0
            for panel in panels:
                if x + panel.width > COLUMNS:
                    x, y, height = 0, y + height, 0
                placed.append(panel.to_json(len(placed) + 1, x, y))
                x, height = x + panel.width, max(height, panel.height)
            y += height
        return placed


_DATASOURCE = {
    "name": "datasource",
    "label": "Prometheus",
    "type": "datasource",
    "query": "prometheus",
    "refresh": 1,
    "options": [],
}
_FIRING = {
    "name": "Alerts",
    "datasource": SOURCE,
    "enable": True,
    "hide": False,
    "iconColor": "red",
    "expr": 'ALERTS{alertname=~"Flotilla.*", alertstate="firing"}',
    "titleFormat": "{{alertname}}",
    "textFormat": "{{pool}} {{instance}}",
    "step": "30s",
}


def variable(name: str, label: str, query: str, **more: Any) -> dict[str, Any]:
    """A choice of label values, above the panels."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "multi": True,
        "includeAll": True,
        "current": {"text": ["All"], "value": ["$__all"]},
        "options": [],
        "refresh": 2,
        "sort": 1,
        **more,
    }
