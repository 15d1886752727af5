"""The form of dashboards, alerts and runbooks; what they ask of metrics is tested on a fleet."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from tests.harness.prometheus import FOLDER
from tests.harness.settings import Settings

GRAFANA = FOLDER / "grafana"
NAMES = ["users", "fleet", "engine"]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
KINDS = {"timeseries", "stat", "table", "heatmap"}
# Of Grafana's list of units, those that are used.
UNITS = {"s", "short", "percentunit", "reqps", "bytes"}


def dashboard(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GRAFANA / "dashboards" / f"{name}.json").read_text())
    return found


def panels(name: str) -> list[dict[str, Any]]:
    """Without the headings of rows."""
    return [panel for panel in dashboard(name)["panels"] if panel["type"] != "row"]


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "rules" / "flotilla.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    found = {rule["alert"]: rule for rule in rules}
    assert len(found) == len(rules)
    return found


def sections() -> dict[str, str]:
    """Heading -> text of each section of the runbooks."""
    parts = re.split(r"^## (.+)$", (FOLDER / "runbooks.md").read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_dashboard_is_tested() -> None:
    found = {path.name for path in (GRAFANA / "dashboards").iterdir()}
    assert found == {f"{name}.json" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_is_found_again_and_offers_its_choices(name: str) -> None:
    board = dashboard(name)
    assert board["uid"] == f"flotilla-{name}"
    assert board["title"].startswith("Flotilla: ")
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert {"datasource", "pool"} <= set(variables)
    assert all(v["datasource"] == SOURCE for v in variables.values() if v["type"] == "query")
    text = json.dumps(board["panels"])
    used = set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval"}
    assert used <= set(variables)


@pytest.mark.parametrize("name", NAMES)
def test_a_panel_says_what_it_shows_in_which_unit_and_what_to_do(name: str) -> None:
    ids = [panel["id"] for panel in dashboard(name)["panels"]]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in panels(name)]
    assert len(set(titles)) == len(titles)
    for panel in panels(name):
        title = panel["title"]
        assert panel["type"] in KINDS, title
        assert panel["datasource"] == SOURCE, title
        # A heatmap's values are counts; its unit is that of its axis.
        heatmap = panel["type"] == "heatmap"
        unit = panel["options"]["yAxis"] if heatmap else panel["fieldConfig"]["defaults"]
        assert unit["unit"] in UNITS, title
        assert len(panel["description"]) > 20, title
        assert panel["targets"], title
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters), title
        for target in panel["targets"]:
            assert target["datasource"] == SOURCE, title
            assert target["expr"], title
            assert target["legendFormat"], title


def test_what_panels_say_of_runbooks_is_there() -> None:
    text = "".join((GRAFANA / "dashboards" / f"{name}.json").read_text() for name in NAMES)
    named = set(re.findall(r"\bFlotilla[A-Z]\w+", text))
    assert named
    assert named <= set(alerts())


def test_provisioning_leads_to_the_dashboards() -> None:
    (source,) = yaml.safe_load(
        (GRAFANA / "provisioning" / "datasources" / "prometheus.yaml").read_text()
    )["datasources"]
    assert source["type"] == "prometheus"
    (provider,) = yaml.safe_load(
        (GRAFANA / "provisioning" / "dashboards" / "flotilla.yaml").read_text()
    )["providers"]
    compose = yaml.safe_load((FOLDER.parent / "compose.yaml").read_text())
    mounts = [mount.split(":") for mount in compose["services"]["grafana"]["volumes"]]
    target = next(mount[1] for mount in mounts if mount[0].endswith("grafana/dashboards"))
    assert provider["options"]["path"] == target
    assert source["url"].removeprefix("http://").partition(":")[0] in compose["services"]


def test_every_alert_says_what_it_means_and_leads_to_its_runbook() -> None:
    written = sections()
    for name, alert in alerts().items():
        notes = alert["annotations"]
        assert set(notes) == {"summary", "description", "runbook"}, name
        assert alert["labels"]["severity"] in {"critical", "warning"}, name
        assert notes["runbook"] == f"runbooks.md#{name.lower()}"
        assert name in written, f"{name} has no runbook"
        for part in ("Means", "Users feel", "Look first", "Do", "Ignore when"):
            assert f"**{part}.**" in written[name], f"{name}: {part}"
    assert [name for name in written if name.startswith("Flotilla")] == list(alerts())


def test_runbooks_name_settings_that_there_are() -> None:
    known = {f"FLOTILLA_{name.upper()}" for name in Settings.model_fields}
    text = (FOLDER / "runbooks.md").read_text() + (FOLDER / "README.md").read_text()
    text += (FOLDER / "rules" / "flotilla.yml").read_text()
    text += "".join((GRAFANA / "dashboards" / f"{name}.json").read_text() for name in NAMES)
    named = set(re.findall(r"\bFLOTILLA_[A-Z_]+[A-Z]", text))
    assert named
    assert named <= known
