"""A panel, in Grafana's form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${datasource}"}

Query = tuple[str, str]
"""PromQL, and what its series are called."""


@dataclass(frozen=True)
class Panel:
    """One panel; its description says what to do when it looks wrong."""

    kind: str
    title: str
    description: str
    unit: str
    queries: Sequence[Query]
    width: int = 12
    height: int = 8
    stacked: bool = False
    warn: float | None = None
    """From here on it is drawn in orange, `bad`: in red; a line in a graph."""
    bad: float | None = None
    most: float | None = None
    columns: Sequence[str] = ()
    """Of a table: the names of its values, one for each query."""

    def to_json(self, number: int, x: int, y: int) -> dict[str, Any]:
        """Grafana's form of it."""
        makers = {"timeseries": _graph, "stat": _stat, "heatmap": _heatmap, "table": _table}
        defaults: dict[str, Any] = {"unit": self.unit, "thresholds": self._thresholds()}
        if self.kind in {"timeseries", "stat"}:
            defaults["min"] = 0
        if self.most is not None:
            defaults["max"] = self.most
        common = {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": SOURCE,
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "targets": [self._target(*pair) for pair in enumerate(self.queries)],
            "fieldConfig": {"defaults": defaults, "overrides": []},
        }
        makers[self.kind](self, common, defaults)
        return common

    def _target(self, index: int, query: Query) -> dict[str, Any]:
        expr, legend = query
        now = self.kind in {"stat", "table"}
        forms = {"heatmap": "heatmap", "table": "table"}
        return {
            "refId": chr(ord("A") + index),
            "datasource": SOURCE,
            "editorMode": "code",
            "expr": expr,
            "legendFormat": legend,
            "format": forms.get(self.kind, "time_series"),
            "instant": now,
            "range": not now,
        }

    def _thresholds(self) -> dict[str, Any]:
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
        for color, value in (("orange", self.warn), ("red", self.bad)):
            if value is not None:
                steps.append({"color": color, "value": value})
        return {"mode": "absolute", "steps": steps}


def _graph(panel: Panel, out: dict[str, Any], defaults: dict[str, Any]) -> None:
    marked = panel.warn is not None or panel.bad is not None
    defaults["color"] = {"mode": "palette-classic"}
    defaults["custom"] = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 30 if panel.stacked else 5,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"group": "A", "mode": "normal" if panel.stacked else "none"},
        "thresholdsStyle": {"mode": "dashed" if marked else "off"},
    }
    out["options"] = {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _stat(panel: Panel, out: dict[str, Any], defaults: dict[str, Any]) -> None:
    defaults["color"] = {"mode": "thresholds"}
    out["options"] = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "none",
        "textMode": "auto",
        "justifyMode": "auto",
        "orientation": "auto",
    }


def _heatmap(panel: Panel, out: dict[str, Any], defaults: dict[str, Any]) -> None:
    del defaults["thresholds"], defaults["unit"]
    defaults["custom"] = {"scaleDistribution": {"type": "linear"}}
    out["options"] = {
        "calculate": False,
        "cellGap": 1,
        "cellValues": {"unit": "short"},
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "unit": panel.unit},
    }


def _table(panel: Panel, out: dict[str, Any], defaults: dict[str, Any]) -> None:
    out["options"] = {"showHeader": True, "cellHeight": "sm"}
    values = [f"Value #{target['refId']}" for target in out["targets"]]
    if len(values) == 1:
        values = ["Value"]
    out["transformations"] = [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {"Time": True},
                "renameByName": dict(zip(values, panel.columns, strict=True)),
            },
        },
    ]


def graph(title: str, description: str, unit: str, *queries: Query, **more: Any) -> Panel:
    """Time series of several queries."""
    return Panel("timeseries", title, description, unit, queries, **more)


def stat(title: str, description: str, unit: str, expr: str, **more: Any) -> Panel:
    """One number."""
    return Panel("stat", title, description, unit, [(expr, title)], width=4, height=4, **more)


def heatmap(title: str, description: str, unit: str, expr: str, **more: Any) -> Panel:
    """A histogram over time."""
    return Panel("heatmap", title, description, unit, [(expr, "{{le}}")], **more)


def table(title: str, description: str, columns: dict[str, str], **more: Any) -> Panel:
    """`columns`: name of a value -> PromQL."""
    queries = [(expr, name) for name, expr in columns.items()]
    return Panel("table", title, description, "short", queries, columns=tuple(columns), **more)
