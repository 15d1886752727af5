"""Jobs in their queues: submit, lease, end, requeue, list, count."""
