"""`autoscale`: the autoscaling policy beside KEDA's and fixed sizes, simulated."""
