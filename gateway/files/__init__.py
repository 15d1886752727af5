"""Files of tenants, as gateways and the maintenance process use them."""
