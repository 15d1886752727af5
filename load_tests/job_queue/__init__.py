"""`queue`: what queue operations cost at growing depth, and how soon an idle worker claims a job."""
