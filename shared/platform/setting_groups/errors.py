"""What a wrong setting raises, and the prefix of all settings' variables."""

from __future__ import annotations

PREFIX = "FLOTILLA_"


class SettingsError(ValueError):
    """A setting is wrong; the message names the variable, the value and what is accepted."""
