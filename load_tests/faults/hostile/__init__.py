"""Hostile requests of one client, and what other clients notice."""
