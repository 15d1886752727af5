"""For operations: health, metrics, the overview, the autoscaler, the page."""
