"""How far one fleet goes: a simulation of Redis, gateways and workers, fed by one measured run."""
