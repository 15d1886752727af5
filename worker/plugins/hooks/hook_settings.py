"""Settings of hooks. Which hooks a pool has is a setting of the pool."""

from __future__ import annotations

from pydantic import Field

from shared.platform.settings import ProcessSettings


class HookSettings(ProcessSettings):
    """Settings that only a worker with hooks reads."""

    hook_timeout_s: float = Field(
        30.0, gt=0, le=3600, description="time limit of one call of a hook"
    )
