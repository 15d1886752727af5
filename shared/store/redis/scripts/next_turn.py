"""Packs the arguments of `next_turn`, which tells whose turn it is, and parses the reply.

Comes from `worker/core/hand_backs.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shared.job.fair_shares import Account, ShareRules
from shared.job.replies import NextTurn
from shared.store.connection import Argument


def pack_next_turn(
    pool: str, accounts: Collection[Account], rules: ShareRules, yielding: str
) -> tuple[Argument, ...]:
    """The script's arguments."""
    words = [word for each in accounts for word in (each.lane, each.tenant)]
    return (pool, rules.half_life_us, yielding, *words)


def parse_next_turn(
    pool: str, accounts: Collection[Account], reply: Sequence[bytes]
) -> NextTurn | None:
    """The script's reply; None: no job waits."""
    if not reply:
        return None
    lane, tenant = reply[0].decode(), reply[1].decode()
    level, *levels = map(float, reply[3:])
    account = Account(pool, lane, tenant)
    return NextTurn(account, int(reply[2]), level, dict(zip(accounts, levels, strict=True)))
