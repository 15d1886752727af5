"""VLLM's errors in OpenAI's shape, from where the installed release has them."""

from __future__ import annotations

try:
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
except ImportError:  # 0.24
    from vllm.entrypoints.serve.utils.error_response import create_error_response

__all__ = ["create_error_response"]
