"""`python -m worker`: one worker process. WorkerSettings come from the environment."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import uvloop

from shared.fleet.pool import Pool
from shared.fleet.pools import load_pools
from shared.platform import logs, process_start, tracing
from shared.platform.loop_watchdog import LoopWatchdog
from shared.platform.settings import SettingsError, load_settings
from shared.store.health import refuse_unfit
from worker.core.worker import Worker
from worker.engines.interface import Engine
from worker.engines.simulated.simulated_settings import SimulatedSettings
from worker.engines.vllm.args import VllmSettings
from worker.worker_settings import WorkerSettings


def _engine(pool: Pool) -> Engine:
    # Imported here because importing vLLM takes ten seconds, which a simulated worker saves.
    if pool.engine == "simulated":
        from worker.engines.simulated.engine import SimulatedEngine

        return SimulatedEngine(load_settings(SimulatedSettings), pool)
    from worker.engines.vllm.engine import VllmEngine

    return VllmEngine(load_settings(VllmSettings), pool)


async def _run(settings: WorkerSettings, pool: Pool) -> int:
    await refuse_unfit(settings)
    worker = Worker(settings, pool, _engine(pool))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    # Loading a model may block the loop for minutes.
    LoopWatchdog(active=lambda: worker.jobs is not None).start()
    return await worker.run()


def main() -> None:
    """Run until a signal or the engine's end; exits with 0, 1 (failure) or 2 (settings)."""
    process_start.prepare()
    try:
        settings = load_settings(WorkerSettings)
        pool = load_pools(settings).own
        logs.set_up(settings.log_level, settings.log_format)
        tracing.check(settings.otlp_traces_endpoint)
        code = uvloop.run(_run(settings, pool))
    except SettingsError as error:
        print(f"flotilla worker: {error}", file=sys.stderr)
        sys.exit(2)
    tracing.shut_down()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without the exit handlers of the engine's libraries, which may hang


if __name__ == "__main__":
    main()
