"""Clients that send load and check every answer."""
