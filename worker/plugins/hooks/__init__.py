"""Hooks: functions of a pool's operator that are called around each request (README.md)."""
