"""Webhooks: endpoints, events and deliveries, as Redis and the API know them."""
