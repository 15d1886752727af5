"""Webhooks: endpoints of tenants that are told what has ended, and the log of what was sent."""
