"""The maintenance process: timers on one event loop, Celery in a child process, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable

from gateway.maintenance import broker, liveness_file
from gateway.maintenance.celery_process import CeleryProcess
from gateway.maintenance.maintenance_settings import MaintenanceSettings
from gateway.maintenance.maintenance_tasks import (
    REPAIR,
    MaintenanceTasks,
    celery_intervals,
    timer_intervals,
)
from shared.fleet.pools import load_pools
from shared.platform.loop_watchdog import LoopWatchdog
from shared.platform.settings import SettingsError
from shared.platform.tasks import end
from shared.store.errors import StoreError
from shared.store.health import refuse_unfit

log = logging.getLogger("flotilla.maintenance")

OVERDUE_S = 120.0
"""If no process has tried to do REPAIR for this long, Celery has stopped taking messages."""
_CHECK_INTERVAL_S = 1.0


async def run(settings: MaintenanceSettings, stdout: int) -> int:
    """Run the maintenance tasks until SIGTERM or SIGINT; returns the exit status.

    `stdout` is the file descriptor for the Celery worker's log lines. Raises SettingsError.
    """
    if problem := await broker.problem(settings):
        raise SettingsError(problem)
    await refuse_unfit(settings)
    LoopWatchdog().start()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    pools = load_pools(settings)
    tasks, celery = MaintenanceTasks(settings, pools), CeleryProcess(stdout)
    timers = timer_intervals(settings, pools)
    intervals = celery_intervals(settings) | timers
    log.info("%s", ", ".join(f"{name} every {s:g} s" for name, s in intervals.items()))
    work = {"Celery": celery.run(), "the health check": watch(settings, tasks, celery)}
    work |= {name: repeat(name, tasks.run, interval_s) for name, interval_s in timers.items()}
    background = {asyncio.create_task(each, name=name) for name, each in work.items()}
    background.add(asyncio.create_task(tasks.watch_health(), name="the look at Redis"))
    stopped = asyncio.create_task(stop.wait(), name="stop")
    background.add(asyncio.create_task(tasks.keep_up(), name="upkeep"))
    ended, _ = await asyncio.wait({stopped, *background}, return_when=asyncio.FIRST_COMPLETED)
    failed = ended - {stopped}
    for task in failed:
        if not isinstance(error := task.exception(), SettingsError):  # that one is raised below
            log.error("%s ended", task.get_name(), exc_info=error)
    await celery.stop()
    await end({stopped, *background})
    await tasks.close()
    with contextlib.suppress(OSError):
        liveness_file.remove(settings)
    for task in failed:
        if isinstance(error := task.exception(), SettingsError):
            raise error
    return 1 if failed else 0


async def repeat(name: str, run_task: Callable[[str], Awaitable[None]], interval_s: float) -> None:
    """Run a task every `interval_s` seconds; one that takes longer delays the next."""
    clock = asyncio.get_running_loop().time
    next_at = clock()
    while True:
        await run_task(name)
        next_at = max(next_at + interval_s, clock())
        await asyncio.sleep(next_at - clock())


async def watch(
    settings: MaintenanceSettings, tasks: MaintenanceTasks, celery: CeleryProcess
) -> None:
    """Touch the liveness file unless REPAIR is overdue; kill Celery if it stays so."""
    clock = asyncio.get_running_loop().time
    on_time_at = clock()
    warned = False
    while True:
        if await _is_overdue(settings, tasks):
            if clock() - on_time_at > OVERDUE_S:
                log.error(
                    "no repair for %.0f s although Redis answers: restarting Celery", OVERDUE_S
                )
                celery.kill()
                on_time_at = clock()
        else:
            on_time_at = clock()
            try:
                liveness_file.touch(settings)
            except OSError as error:
                if not warned:
                    log.warning("the health check will fail: %s", error)
                warned = True
        await asyncio.sleep(_CHECK_INTERVAL_S)


async def _is_overdue(settings: MaintenanceSettings, tasks: MaintenanceTasks) -> bool:
    """Whether no process has begun REPAIR lately although both Redis databases answer.

    A REPAIR that has begun and fails counts: a restart brings back no Redis server.
    """
    try:
        if await tasks.runs.has_begun(REPAIR):
            return False
        age_s = await tasks.runs.seconds_since(REPAIR)
    except StoreError:
        return False
    if age_s is not None and age_s < OVERDUE_S:
        return False
    return await broker.answers(settings)
