"""`flotilla engine-node`: a further machine of an engine whose head is a worker.

It runs vLLM's own processes with the worker's arguments and its rank, takes no jobs and needs no
Redis. It ends with 1 when the head has ended, with which nothing can be computed any more; a
supervisor starts it again beside the next head.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from typing import Any

from shared.fleet.pools import load_pools
from shared.platform import logs, process_start
from shared.platform.settings import SettingsError, load_settings
from worker.engines.vllm import arguments, release
from worker.engines.vllm.vllm_settings import VllmSettings
from worker.worker_settings import WorkerSettings

log = logging.getLogger("flotilla.engine")

_EVERY_S = 1.0
_TIMEOUT_S = 2.0
_ATTEMPTS = 3


def run(node_rank: int) -> None:
    """Run until the engine ends. Raises SettingsError."""
    settings = load_settings(WorkerSettings)
    pool = load_pools(settings).own
    logs.set_up(settings.log_level, settings.log_format)
    arguments.set_defaults(pool)
    v = release.load()
    args = arguments.parse(
        v, pool, load_settings(VllmSettings).otlp_traces_endpoint, node_rank=node_rank
    )
    v.choose_model_runner(prefills=v.prefills.enabled())
    args.api_server_count = 0  # vLLM's own value for a process without a server
    if not v.install_prefill_resume():
        _install_forced_replay(v, args)
    head = (args.master_addr, args.master_port)
    threading.Thread(target=_end_with, args=(head,), daemon=True, name="head-watch").start()
    log.info("node %d of %d: its head is %s:%d", node_rank, args.nnodes, *head)
    v.run_headless(args)


def _install_forced_replay(v: Any, args: Any) -> None:
    config = v.AsyncEngineArgs.from_cli_args(args).create_engine_config(headless=True)
    v.install_forced_replay(config)
    args.logits_processors = config.model_config.logits_processors


def _end_with(head: tuple[str, int]) -> None:
    """End this process when the head, once reached, can't be connected to any more.

    vLLM's processes here wait for the head's next message without a limit. The port is that of
    torch's store, which the head's first process has open as long as the group lives.
    """
    reached, failures = False, 0
    while failures < _ATTEMPTS:
        time.sleep(_EVERY_S)
        try:
            socket.create_connection(head, timeout=_TIMEOUT_S).close()
            reached, failures = True, 0
        except OSError:
            failures += reached
    log.error("the head of the engine, %s:%d, has ended", *head)
    os._exit(1)  # vLLM's processes end with it (engines/vllm/parent_death.py)


def main() -> None:
    """`python -m worker.engine_node RANK`; exits with 1 (failure) or 2 (settings)."""
    process_start.prepare()
    try:
        run(int(sys.argv[1]))
    except SettingsError as error:
        sys.stderr.write(f"flotilla engine-node: {error}\n")
        sys.exit(2)
    log.error("the engine's processes on this machine have ended")
    sys.exit(1)


if __name__ == "__main__":
    main()
