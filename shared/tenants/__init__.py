"""Tenants' API keys: what a key may do, and how it is stored. Pure; imports nothing of ours."""
