"""When the requests of a benchmark are sent: the same times as in `vllm bench serve`. Pure."""

from __future__ import annotations

import math
import random
from itertools import accumulate


def arrival_times(n: int, rate: float, burstiness: float, draw: random.Random) -> list[float]:
    """Seconds from the start until each of `n` requests is due; all 0 for an infinite rate.

    The gaps follow a gamma distribution: with burstiness 1 a Poisson process, with more burstiness
    more uniform, with infinite burstiness constant. The last request is due after exactly
    `n / rate`, so that runs with different seeds have the same load.
    """
    if math.isinf(rate):
        return [0.0] * n
    if math.isinf(burstiness):
        gaps = [1.0 / rate] * n
    else:
        scale = 1.0 / (rate * burstiness)
        gaps = [draw.gammavariate(burstiness, scale) for _ in range(n)]
    times = list(accumulate(gaps))
    stretch = n / rate / times[-1] if times and times[-1] else 1.0
    return [time * stretch for time in times]
