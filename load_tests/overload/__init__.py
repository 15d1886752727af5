"""`overload`: many more jobs than the bounds of pool, tenant and Redis' memory allow."""
