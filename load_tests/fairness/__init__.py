"""How a full pool is shared between tenants, measured on a trace."""
