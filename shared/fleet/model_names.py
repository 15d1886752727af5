"""Which pool a client's name for a model leads to. Pure.

A name is a served name (a model may have several), a served name with a version (`name:version`),
or the name of an adapter. Several pools may serve versions of the same names: a request that names
none goes to one of them by their weights.
"""

from __future__ import annotations

import difflib
from bisect import bisect
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import accumulate

from shared.fleet.pools import Pools
from shared.fleet.registry import ModelInfo, unknown_card

_MOST_NEAR = 5
_CUTOFF = 0.5
"""How alike names have to be to be suggested; 1 is equal."""


class Versions:
    """The versions of one name, each in a pool of its own."""

    def __init__(self, models: Iterable[ModelInfo]) -> None:
        self.models = sorted(models, key=lambda model: (-model.weight, model.version))
        self._by_version = {model.version: model for model in self.models}
        self._sums = list(accumulate(model.weight for model in self.models))

    def choose(self, version: str, share: float) -> ModelInfo | None:
        """The version asked for, else one by weight.

        `share` (0 to 1, 1 excluded) is where the request falls among all.
        """
        if version:
            return self._by_version.get(version)
        total = self._sums[-1]
        return self.models[bisect(self._sums, share * total) if total else 0]

    @property
    def first(self) -> ModelInfo:
        """The one with the greatest weight."""
        return self.models[0]


class ModelNames:
    """All names of a fleet's models. Immutable."""

    def __init__(
        self,
        models: Mapping[str, ModelInfo],
        default_model: str = "",
    ) -> None:
        """`models`: by their names in the registry, which contain the version if there is one."""
        self._plain = {name: model for name, model in models.items() if not model.version}
        self._pinned = {}
        grouped: dict[str, list[ModelInfo]] = {}
        for name, model in models.items():
            if model.version:
                grouped.setdefault(model.served_name, []).append(model)
                # vLLM accepts an adapter by its own name only.
                if not model.card.get("parent"):
                    self._pinned[name] = model
        self._versions = {name: Versions(group) for name, group in grouped.items()}
        self.default = default_model or self._only_model()
        """The model of requests that name none; empty: there are several pools."""

    def resolve(self, name: str, version: str = "", share: float = 0.0) -> ModelInfo | None:
        """The model of a name, or the default model if it is empty; None if there is none."""
        if not version:  # most requests
            model = self._plain.get(name)
            if model is not None:
                return model
        name = name or self.default
        versions = self._versions.get(name)
        if versions is not None:
            return versions.choose(version, share)
        model = self._plain.get(name) or self._pinned.get(name)
        return model if model is not None and version in ("", model.version) else None

    def versions(self, name: str) -> list[ModelInfo]:
        """The versions of a name, the one with the greatest weight first; of others nothing."""
        versions = self._versions.get(name)
        return versions.models if versions else []

    @property
    def listed(self) -> dict[str, ModelInfo]:
        """Every name that a request can have, in order; one without a version stands for all."""
        names = {}
        for name, versions in self._versions.items():
            first = versions.first
            names[name] = replace(first, name=name, card=first.card | {"id": name})
        return dict(sorted((self._plain | self._pinned | names).items()))

    def nearest(self, name: str) -> list[str]:
        """The names that are most like this one, whatever the case; else some that there are."""
        names = {each.lower(): each for each in self.listed}
        near = difflib.get_close_matches(name.lower(), names, _MOST_NEAR, _CUTOFF)
        # `llama` is not like `meta-llama/Llama-3.1-8B-Instruct`, but a part of it.
        part = [each for each in names if name and name.lower() in each and each not in near]
        found = [names[each] for each in (near + part)[:_MOST_NEAR]]
        return found or list(self.listed)[: 2 * _MOST_NEAR]

    def only_of(self, pools: Collection[str]) -> str:
        """The only model that one of these pools serves; empty: none, or several."""
        return self._only_model(pools)

    def _only_model(self, pools: Collection[str] | None = None) -> str:
        """The model of the only pool, or of the only model's versions; an adapter is none."""
        models = [
            model
            for model in self.listed.values()
            if not model.card.get("parent") and (pools is None or model.pool in pools)
        ]
        groups = {
            frozenset(each.pool for each in self.versions(model.served_name or model.name))
            or model.pool
            for model in models
        }
        return models[0].served_name or models[0].name if len(groups) == 1 else ""


def declared_models(pools: Pools) -> dict[str, ModelInfo]:
    """The names that flotilla.yaml gives its models, by their names in the registry."""
    models = {}
    for pool in pools.all if pools.declared else ():
        for served_name in pool.served_names:
            name = f"{served_name}:{pool.version}" if pool.version else served_name
            models[name] = ModelInfo(
                name=name,
                pool=pool.name,
                card=unknown_card(name),
                served_name=served_name if pool.version else "",
                version=pool.version,
                weight=pool.weight,
            )
    return models


def merged(
    declared: Mapping[str, ModelInfo], known: Mapping[str, ModelInfo]
) -> dict[str, ModelInfo]:
    """The models of flotilla.yaml and of the registry; the file counts where they contradict.

    Of a pool in the file, the registry has the cards, and adapters that were loaded since.
    """
    weights = {model.pool: model.weight for model in declared.values()}
    versioned = {model.served_name for model in declared.values() if model.version}
    models = dict(declared)
    for name, model in known.items():
        pool, ours = model.pool, declared.get(name)
        if ours is not None:
            if ours.pool == pool:
                models[name] = replace(ours, card=model.card)
        elif pool in weights:
            if model.card.get("parent"):
                models[name] = replace(model, weight=weights[pool])
        elif name not in versioned:
            models[name] = model
    return models
