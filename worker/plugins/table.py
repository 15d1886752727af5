"""The plug-ins of a worker.

To remove one, delete its folder, its tests, its two lines here and its line in
shared/platform/settings.py.
"""

from __future__ import annotations

from collections.abc import Callable

from shared.fleet.pool import Pool
from worker.core.plugin import AroundRuns
from worker.plugins.hooks.hooks_plugin import hooks_of

PLUGINS: tuple[Callable[[Pool], AroundRuns | None], ...] = (
    hooks_of,
)  # fmt: skip
"""Each makes its plug-in for a worker of this pool; None: the pool does not use it."""
