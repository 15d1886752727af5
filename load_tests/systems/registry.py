"""All systems by name, in the order of the tables."""

from __future__ import annotations

from load_tests.systems.direct import Direct
from load_tests.systems.flotilla import VARIANTS
from load_tests.systems.system import System

SYSTEMS: dict[str, type[System]] = {system.name: system for system in (Direct, *VARIANTS)}
