"""Settings of the vLLM engine."""

from __future__ import annotations

from pydantic import Field

from shared.fleet.fleet_settings import FleetSettings
from shared.fleet.pool_settings import WorkerMemorySettings


class VllmSettings(WorkerMemorySettings, FleetSettings):
    """Settings that only a worker with vLLM reads."""

    share_prompt_cache: bool = Field(
        False,
        description="tenants use each other's cached prompts, and can tell from the time of an "
        "answer whether another one has sent the same text",
    )
