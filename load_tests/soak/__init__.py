"""`soak`: mixed load for a while; memory, keys and open files must not grow."""
