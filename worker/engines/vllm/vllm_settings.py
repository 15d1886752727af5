"""Settings of the vLLM engine: its memory, and what it spends on checking one request."""

from __future__ import annotations

from pydantic import Field

from shared.fleet.fleet_settings import FleetSettings
from shared.fleet.pool_settings import WorkerMemorySettings


class VllmSettings(WorkerMemorySettings, FleetSettings):
    """Settings that only a worker with vLLM reads."""

    grammar_timeout_s: float = Field(
        4.0,
        gt=0,
        le=4,
        description="CPU time for compiling one request's grammar (schema, regex, choice, ...)",
    )
    grammar_memory_bytes: int = Field(512 << 20, ge=1 << 20, description="memory for the same")
    share_prompt_cache: bool = Field(
        False,
        description="tenants use each other's cached prompts, and can tell from the time of an "
        "answer whether another one has sent the same text",
    )
