"""Taking jobs from the queue: how many, from where, and the leases that keep them."""
