"""Settings of `flotilla up`."""

from __future__ import annotations

from gateway.listen_settings import ListenSettings
from gateway.maintenance.maintenance_settings import MaintenanceSettings
from shared.fleet.pool_settings import WorkerMemorySettings, WorkerPlaceSettings


class LauncherSettings(
    ListenSettings, WorkerPlaceSettings, WorkerMemorySettings, MaintenanceSettings
):
    """The settings of the processes it starts that concern their addresses, pools and ends."""
