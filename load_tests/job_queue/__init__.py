"""`queue`: the cost of queue operations at growing depth, and the latency of a claim."""
