"""The faults of the table, by the names that the option `--only` takes."""

from __future__ import annotations

from load_tests.faults.injected import process_faults as process
from load_tests.faults.injected import redis_faults as redis
from load_tests.faults.injected.fault import Fault

FAULTS = {
    "none": Fault("none", process.nothing, 5),
    "worker-kill": Fault("worker kill -9", process.worker_kill, 20),
    "worker-stop": Fault("worker stopped for two leases", process.worker_stop, 8, 5.0),
    "worker-term": Fault("worker SIGTERM with a successor", process.worker_sigterm, 8, 5.0),
    "same-id": Fault("two workers with one id", process.two_workers_with_one_id, 1, 12.0),
    "gateway-kill": Fault("gateway kill -9", process.gateway_kill, 6, 6.0),
    "gateway-term": Fault(
        "gateway SIGTERM, two gateways", process.gateway_sigterm, 6, fleet={"gateways": 2}
    ),
    "redis-kill": Fault("Redis kill -9, AOF", redis.kill, 6, 6.0),
    "redis-stop": Fault("Redis stopped for 3 s (two leases)", redis.stop, 4, 14.0),
    "redis-lost": Fault("Redis kill -9 without AOF", redis.kill, 4, 6.0, {"appendonly": False}),
    "redis-full": Fault("Redis out of memory", redis.out_of_memory, 6, 5.0),
    "redis-evicts": Fault("Redis evicts (allkeys-lru)", redis.evict, 6, 5.0),
    "job-deleted": Fault("job hash deleted", redis.delete_job, 8, 2.0),
    "log-deleted": Fault("log of a running job deleted", redis.delete_log, 8, 2.0),
    "flushall": Fault("FLUSHALL", redis.flush_all, 4, 6.0),
    "scripts": Fault("scripts and functions flushed", redis.flush_scripts, 8, 2.0),
    "subscriptions": Fault("subscriptions killed", redis.kill_subscriptions, 8, 2.0),
    "connections": Fault("all Redis connections killed", redis.kill_connections, 8, 3.0),
}
