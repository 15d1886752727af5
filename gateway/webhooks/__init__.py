"""Webhooks: the calls to endpoints of tenants, and which addresses they may reach."""
