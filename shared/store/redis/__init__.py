"""The job queue on Redis: keys, scripts, connections, and what finds lost workers."""
