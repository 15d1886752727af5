"""A seeded run of many kills: no token lost or repeated, no stream cut."""
