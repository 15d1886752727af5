"""Writes the dashboards: `python compose/observability/grafana/generate [FOLDER]`.

A panel is a few lines here and a page of JSON in Grafana's form; ids, places and what all panels
have in common come from one place. The JSON files are what Grafana reads; a test keeps them so.
"""

from __future__ import annotations

import sys
from pathlib import Path

from engine import ENGINE
from fleet import FLEET
from users import USERS


def main() -> None:
    """Write one file for each, into the folder that is named or into `dashboards`."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent.parent / "dashboards"
    for name, dashboard in {"users": USERS, "fleet": FLEET, "engine": ENGINE}.items():
        (folder / f"{name}.json").write_text(dashboard.render())


if __name__ == "__main__":
    main()
