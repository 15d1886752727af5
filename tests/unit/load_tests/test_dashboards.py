"""The limits of what open dashboards may cost."""

from __future__ import annotations

import pytest

from load_tests.dashboards.command import DashboardCost, evaluate


def cost(streams: int, core: float, commands: float) -> DashboardCost:
    return DashboardCost(streams, core, 0.01, 100.0, commands, 1.0, 9000.0)


@pytest.mark.parametrize(
    ("core", "commands", "good"),
    [(0.05, 8.1, True), (0.08, 8.0, False), (0.05, 16.0, False)],
)
def test_the_limits(core: float, commands: float, good: bool) -> None:
    costs = [cost(0, 0.02, 0), cost(1, 0.03, 8), cost(50, core, commands)]
    assert evaluate(costs)[0] is good
