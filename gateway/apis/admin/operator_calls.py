"""Carries out operator calls, and stores what later workers have to do, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.apis.admin.broadcast import OUTCOMES, Broadcast, Operation, new_operation_id
from gateway.core.context import Gateway
from shared.api.operator_actions import (
    ACTIONS,
    DRAIN,
    LOAD_ADAPTER,
    PAUSE,
    RESUME,
    UNLOAD_ADAPTER,
    OperatorAction,
)
from shared.fleet.registry import ModelInfo, unknown_card
from shared.job.errors import (
    BadRequest,
    ModelInUse,
    ModelNotFound,
    NotFound,
    NoWorker,
    WorkerNotReady,
)
from shared.store.fleet_registry import Registry
from shared.store.operators import AuditTrail, DesiredPool, DesiredPools
from shared.store.upkeep import in_use
from shared.tenants.api_key import ApiKey


class OperatorCalls:
    """The operator calls of one gateway process. The methods raise StoreError."""

    def __init__(self, gateway: Gateway) -> None:
        servers, timeout_s = gateway.queue.servers, gateway.settings.operation_timeout_s
        self._fleet = gateway.fleet
        self._on_change = gateway.on_fleet_change
        self._metrics = metrics = gateway.metrics
        self._audit = gateway.of(AuditTrail)
        # The timeout is for the answers of all workers of a pool together.
        self._broadcast = Broadcast(servers, gateway.fleet, timeout_s)
        self._desired = DesiredPools(gateway.queue)
        self._registry = Registry(servers.primary)
        self._queue = gateway.queue
        # Prometheus misses the first increase of a counter that does not start at 0.
        for name in (*ACTIONS, DRAIN.name):
            for outcome in OUTCOMES:
                metrics.operator_calls.labels(name, outcome)

    async def pool(self, name: str | None) -> str:
        """A pool by its name or by that of one of its models; None: the only one.

        Raises NotFound, BadRequest and NoWorker.
        """
        await self._fleet.refresh()
        pools = self.pools()
        if name in pools:
            return name
        if name is not None and name in self._fleet.models:
            return self._fleet.models[name].pool
        known = ", ".join(pools) or "none yet"
        if name is not None:
            raise NotFound(f"There is no pool or model named {name[:100]!r}; pools: {known}.")
        if not pools:
            raise NoWorker("No worker has registered a model yet, so there is no pool.")
        if len(pools) > 1:
            raise BadRequest(f"Name the pool with `?pool=`; there are {known}.", "pool")
        return pools[0]

    def pools(self) -> list[str]:
        """The names of all pools, as of the last refresh."""
        of_models = {model.pool for model in self._fleet.models.values()}
        return sorted(of_models | {worker.pool for worker in self._fleet.workers})

    async def desired(self, pool: str) -> DesiredPool:
        """The state of a pool that operators have requested."""
        return await self._desired.read(pool)

    async def call(
        self,
        pool: str,
        action: OperatorAction,
        options: Mapping[str, Any],
        operator: ApiKey,
        reason: str = "",
    ) -> Operation:
        """Carry it out on all workers of the pool; `operator`: who asks for it.

        What later workers have to do, too, is stored first, so that none misses it. Raises
        BadRequest and NotFound.
        """
        match action.name:
            case LOAD_ADAPTER.name:
                done = await self._load(pool, options)
            case UNLOAD_ADAPTER.name:
                done = await self._unload(pool, options["lora_name"])
            case PAUSE.name if options.get("intake"):
                # Gateways read it; workers do nothing.
                await self._desired.switch(pool, intake_stopped=True)
                done = Operation(new_operation_id(), pool, action.name, {})
            case PAUSE.name:
                await self._desired.switch(pool, paused=True)
                done = await self._broadcast.send(pool, action, options)
            case RESUME.name:
                await self._desired.switch(pool, paused=False, intake_stopped=False)
                done = await self._broadcast.send(pool, action, options)
            case _:
                done = await self._broadcast.send(pool, action, options)
        if action in (PAUSE, RESUME):
            await self._fleet.refresh()
        await self._record(done, options, operator, reason)
        return done

    async def drain(self, worker_id: str, operator: ApiKey, reason: str = "") -> Operation:
        """Have one worker drain and end; returns when it has begun. See `call`.

        Raises NotFound, and WorkerNotReady if it can't receive the call.
        """
        await self._fleet.refresh()
        workers = {worker.id: worker for worker in self._fleet.workers}
        worker = workers.get(worker_id)
        if worker is None:
            known = ", ".join(workers) or "none"
            raise NotFound(f"There is no worker {worker_id[:100]!r}; workers: {known[:500]}.")
        done = await self._broadcast.send(worker.pool, DRAIN, {}, worker.id)
        if not done.workers:
            raise WorkerNotReady(
                f"The worker {worker.id} is {worker.state} and can't be drained now; to end it, "
                "stop its process."
            )
        await self._record(done, {}, operator, reason)
        return done

    async def forget(self, name: str, operator: ApiKey, reason: str = "") -> None:
        """Forget a model, with all of its versions and adapters, whose pool is not in use.

        Raises ModelNotFound, and ModelInUse.
        """
        models = await self._registry.models()
        named = {n: each for n, each in models.items() if name in (n, each.served_name)}
        if not (name and named):
            raise ModelNotFound(f"There is no model {name[:100]!r} in the registry.")
        if declared := self._fleet.declared & named.keys():
            raise ModelInUse(f"flotilla.yaml names {', '.join(sorted(declared))}: remove it there.")
        used = {each.pool for each in named.values()} & await in_use(self._queue, self._registry)
        if used:
            raise ModelInUse(
                f"The pool {', '.join(sorted(used))} has workers, jobs or open batches: end these "
                "first."
            )
        names = {*named, *(n for n, each in models.items() if each.card.get("parent") in named)}
        await self._registry.forget_models(names)
        await self._fleet.refresh()
        self._on_change()
        await self._audit.write("model.forget", name, operator, reason, models=sorted(names))

    async def _record(
        self, done: Operation, options: Mapping[str, Any], operator: ApiKey, reason: str
    ) -> None:
        self._on_change()
        self._metrics.operator_calls.labels(done.action, done.outcome).inc()
        await self._audit.write(
            f"pool.{done.action}",
            done.pool,
            operator,
            reason,
            operation=done.id,
            outcome=done.outcome,
            options=dict(options),
            workers={worker: answer.status for worker, answer in done.workers.items()},
        )

    async def _load(self, pool: str, options: Mapping[str, Any]) -> Operation:
        name, in_place = options["lora_name"], bool(options.get("load_inplace"))
        self._check_free(pool, name)
        before = (await self._desired.read(pool)).adapters.get(name)
        is_new = before is None or in_place
        if not (is_new and await self._desired.put_adapter(pool, options, replace=in_place)):
            raise BadRequest(
                f"The lora adapter '{name}' has already been loaded. If you want to load the "
                "adapter in place, set 'load_inplace' to True.",
                "lora_name",
            )
        done = await self._broadcast.send(pool, LOAD_ADAPTER, options)
        if done.without_effect:
            if before is None:
                await self._desired.remove_adapter(pool, name)
            else:
                await self._desired.put_adapter(pool, before, replace=True)
        elif not done.workers:  # jobs for it may wait already
            await self._declare(pool, name, options["lora_path"])
        await self._fleet.refresh()
        return done

    async def _unload(self, pool: str, name: str) -> Operation:
        was_desired = await self._desired.remove_adapter(pool, name)
        known = _is_adapter((await self._registry.models()).get(name), pool)
        if not (was_desired or known):
            raise NotFound(f"The lora adapter '{name[:100]}' cannot be found in the pool {pool}.")
        if known:
            await self._registry.forget_models([name])
        done = await self._broadcast.send(pool, UNLOAD_ADAPTER, {"lora_name": name})
        if not done.failed:  # a heartbeat may have announced it once more
            await self._registry.forget_models([name])
        await self._fleet.refresh()
        return done

    def _check_free(self, pool: str, name: str) -> None:
        """Raise BadRequest if another model has this name.

        Versions of a model, in several pools, may have adapters of the same name.
        """
        model = self._fleet.models.get(name)
        if model is None or _is_adapter(model, pool):
            return
        if not (model.version and model.card.get("parent")):
            raise BadRequest(
                f"The lora adapter '{name}' conflicts with a model of the pool {model.pool}.",
                "lora_name",
            )

    async def _declare(self, pool: str, name: str, path: str) -> None:
        base = self._base_model(pool)
        card = unknown_card(name) | {"root": path, "parent": base.name if base else pool}
        version, weight = (base.version, base.weight) if base else ("", 100)
        await self._registry.declare_models(pool, [card], version, weight)

    def _base_model(self, pool: str) -> ModelInfo | None:
        models = self._fleet.models.values()
        bases = (each for each in models if each.pool == pool and not each.card.get("parent"))
        return next(bases, None)


def _is_adapter(model: ModelInfo | None, pool: str) -> bool:
    """Whether it is one of the pool."""
    return model is not None and model.pool == pool and bool(model.card.get("parent"))
