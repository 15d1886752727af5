"""What queries have in common."""

from __future__ import annotations

from dashboard import variable
from panel import Query

RATE = "[$__rate_interval]"
POOL = '{pool=~"$pool"}'
OF_POOL = f"and on (job, instance) flotilla_worker_info{POOL}"
"""Keeps the series of the pool's workers: workers' metrics have no pool of their own."""
WORKER = '{instance=~"$instance"}'

POOLS = variable("pool", "Pool", "label_values(flotilla_queue_depth, pool)", allValue=".*")
# No `allValue`: all instances are then those of the chosen pools.
INSTANCES = variable("instance", "Worker", f"label_values(flotilla_worker_info{POOL}, instance)")


def quantiles(
    histogram: str, *, of: str = "", by: str = "", shares: str = "50 95 99"
) -> list[Query]:
    """Quantiles of a histogram, over all its series or `by` a label. `of` chooses series."""
    labels = f"le, {by}" if by else "le"
    name = f"{{{{{by}}}}} " if by else ""
    return [
        (
            f"histogram_quantile(0.{share}, "
            f"sum by ({labels}) (rate({histogram}_bucket{RATE}){of and ' ' + of}))",
            f"{name}p{share}",
        )
        for share in shares.split()
    ]
