"""Files of tenants: what is known of them, and the storage that has their bytes."""
