"""The autoscaler: observe a pool, decide, start or drain workers."""
