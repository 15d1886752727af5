"""msgpack as the protocol uses it: the one packer for everything that is stored or published."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack

pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=False, autoreset=True).pack
"""Packs an object.

Bytes and strings both get msgpack's old `raw` head: Redis' cmsgpack has no `bin` type, and short
values take one byte less.
"""
