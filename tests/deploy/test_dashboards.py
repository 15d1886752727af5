"""The form of the dashboard and the alerts; what they ask of metrics is tested on a fleet."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from tests.deploy.queries import DASHBOARD
from tests.harness.prometheus import FOLDER, RULES
from tests.harness.settings import Settings

PROVISIONING = FOLDER / "grafana" / "provisioning"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Of Grafana's list of units, those that are used.
UNITS = {"s", "short", "percentunit", "reqps", "bytes"}
BOARD: dict[str, Any] = json.loads(DASHBOARD.read_text())


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def test_a_dashboard_offers_its_choices() -> None:
    variables = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert all(v["datasource"] == SOURCE for v in variables.values() if v["type"] == "query")
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD["panels"]))) - {"__rate_interval"}
    assert used == set(variables)


def test_a_panel_says_what_it_shows_in_which_unit_and_what_to_do() -> None:
    panels = BOARD["panels"]
    for what in ("id", "title"):
        assert len({panel[what] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    for panel in panels:
        title = panel["title"]
        assert panel["datasource"] == SOURCE, title
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, title
        assert len(panel["description"]) > 20, title
        letters = [target["refId"] for target in panel["targets"]]
        assert letters, title
        assert len(set(letters)) == len(letters), title
        for target in panel["targets"]:
            assert target["datasource"] == SOURCE, title
            assert target["legendFormat"], title


def test_provisioning_leads_to_the_dashboard() -> None:
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["type"] == "prometheus"
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "flotilla.yaml").read_text())[
        "providers"
    ]
    compose = yaml.safe_load((FOLDER.parent / "compose.yaml").read_text())
    mounts = [mount.split(":") for mount in compose["services"]["grafana"]["volumes"]]
    target = next(mount[1] for mount in mounts if mount[0].endswith("grafana/dashboards"))
    assert provider["options"]["path"] == target
    assert source["url"].removeprefix("http://").partition(":")[0] in compose["services"]


def test_every_alert_says_what_it_means_and_how_bad_it_is() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert len(set(names)) == len(names)
    for alert in alerts():
        assert set(alert["annotations"]) == {"summary", "description"}, alert["alert"]
        assert alert["labels"]["severity"] in {"critical", "warning"}, alert["alert"]


def test_alerts_and_panels_name_settings_and_panels_that_there_are() -> None:
    text = RULES.read_text() + DASHBOARD.read_text() + (FOLDER / "README.md").read_text()
    known = {f"FLOTILLA_{name.upper()}" for name in Settings.model_fields}
    named = set(re.findall(r"\bFLOTILLA_[A-Z_]+[A-Z]", text))
    assert named
    assert named <= known
    titles = {panel["title"] for panel in BOARD["panels"]}
    descriptions = " ".join(" ".join(alert["annotations"].values()) for alert in alerts())
    panels = re.findall(r'panels? "([^"]+)"(?: and "([^"]+)")?', descriptions)
    assert panels
    assert {title for pair in panels for title in pair if title} <= titles
