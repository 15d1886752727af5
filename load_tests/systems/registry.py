"""All systems by name, in the order of the tables."""

from __future__ import annotations

from load_tests.systems.direct import Direct
from load_tests.systems.flotilla import (
    Flotilla,
    FlotillaBefore,
    FlotillaPlain,
    FlotillaTcp,
    FlotillaTwoGateways,
    FlotillaTwoRedis,
)
from load_tests.systems.lean import Lean
from load_tests.systems.naive import Naive
from load_tests.systems.peers import LiteLLM, Nginx, ProductionStack, RustRouter
from load_tests.systems.system import System

OWN = (
    Direct,
    Lean,
    Flotilla,
    FlotillaBefore,
    FlotillaPlain,
    FlotillaTcp,
    FlotillaTwoGateways,
    FlotillaTwoRedis,
    Naive,
)
PEERS = (Nginx, RustRouter, ProductionStack, LiteLLM)
"""Other projects' proxies, measured only with PEERS=1 or by name."""

SYSTEMS: dict[str, type[System]] = {system.name: system for system in (*OWN, *PEERS)}
