"""Whether all processes of an engine over several machines answer, asked while it is idle.

VLLM watches the processes of the head's machine only. Without requests it would not notice the end
of another machine until the next request, which then fails.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

log = logging.getLogger("flotilla.engine")

EVERY_S = 5.0
_TIMEOUT_S = 4.0
"""With `EVERY_S`, an idle engine is found broken within 10 s."""


def spans_machines(parallel_config: Any) -> bool:
    """Whether vLLM's processes are on several machines, or may be (Ray)."""
    return bool(parallel_config.nnodes > 1 or parallel_config.distributed_executor_backend == "ray")


async def until_broken(engine: Any) -> None:
    """Return when a process of the group does not answer. `engine`: an AsyncLLM.

    Nothing is asked while there are requests: a step that fails ends the engine by itself.
    """
    while True:
        await asyncio.sleep(EVERY_S)
        if engine.output_processor.get_num_unfinished_requests():
            continue
        try:
            async with asyncio.timeout(_TIMEOUT_S + 1):
                await engine.collective_rpc("check_health", timeout=_TIMEOUT_S)
        except Exception as error:
            # A request that has come meanwhile may delay the call. VLLM's own errors are no
            # TimeoutError.
            busy = engine.output_processor.get_num_unfinished_requests()
            if isinstance(error, TimeoutError) and busy:
                continue
            log.error("a machine of the engine does not answer: %r", error)
            return
