"""The files of the page, as the gateway serves them."""

from __future__ import annotations

from gateway.ops.page_route import router as page_files

__all__ = ["page_files"]
