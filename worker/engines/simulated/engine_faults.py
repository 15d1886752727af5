"""The faults of a simulated engine: FLOTILLA_SIM_FAULTS is a comma separated list of `name=value`.

die_after_steps=N     after N steps the engine is dead: streams end with an `error` chunk, other
                      calls with 500, `dead` is True
die_on_signal=NAME    as die_after_steps, when the process gets this signal (SIGUSR1, SIGUSR2)
hang_after_steps=N    after N steps no further step is taken; nothing is raised
kill_on_prompt=TEXT   the process sends itself SIGKILL when a prompt that contains TEXT has
                      reached the batch, before its first token
die_on_prompt=TEXT    the same, but the engine dies, not the process
kill_after_tokens=N   with one of these two: not before N tokens of that answer are out (never,
                      if it is not longer)
slow_start_s=X        `start` takes X seconds
slow_operations_s=X   an operator's call takes X seconds, and no step is taken meanwhile
refuse_past=1         the engine continues no job of an earlier worker
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from shared.platform.settings import SettingsError

_AtLeast1 = Annotated[int, Field(ge=1)]
_Text = Annotated[str, Field(min_length=1)]


class EngineFaults(BaseModel, extra="forbid", frozen=True):
    """The faults of one engine, which the module describes."""

    die_after_steps: _AtLeast1 | None = None
    die_on_signal: Literal["SIGUSR1", "SIGUSR2"] | None = None
    hang_after_steps: _AtLeast1 | None = None
    kill_on_prompt: _Text = ""
    die_on_prompt: _Text = ""
    kill_after_tokens: Annotated[int, Field(ge=0)] = 0
    slow_start_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    slow_operations_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    refuse_past: bool = False

    @classmethod
    def parse(cls, text: str) -> EngineFaults:
        """Raises SettingsError for what the module does not describe."""
        items = [item.strip().partition("=") for item in text.split(",") if item.strip()]
        values = {name: value for name, _, value in items}
        try:
            faults = cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            raise SettingsError(f"FLOTILLA_SIM_FAULTS: {name}: {first['msg']}") from error
        if len(values) < len(items):
            raise SettingsError("FLOTILLA_SIM_FAULTS: a fault is given twice")
        if faults.kill_after_tokens and not (faults.kill_on_prompt or faults.die_on_prompt):
            raise SettingsError(
                "FLOTILLA_SIM_FAULTS: kill_after_tokens needs kill_on_prompt or die_on_prompt"
            )
        return faults
