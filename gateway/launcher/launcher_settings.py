"""Settings of `flotilla up`."""

from __future__ import annotations

from pydantic import Field

from gateway.listen_settings import ListenSettings
from gateway.maintenance.maintenance_settings import MaintenanceSettings
from shared.fleet.pool_settings import WorkerMemorySettings, WorkerPlaceSettings


class LauncherSettings(
    ListenSettings, WorkerPlaceSettings, WorkerMemorySettings, MaintenanceSettings
):
    """The settings of the processes it starts that concern their addresses, pools and ends."""

    worker_restart_after_s: float = Field(
        60.0,
        ge=1,
        le=86_400,
        description="`flotilla up` kills and restarts a worker that has been lost for so long "
        "although its process runs, or that drains for so much longer than it may",
    )
