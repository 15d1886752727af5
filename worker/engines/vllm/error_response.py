"""VLLM's errors in OpenAI's shape, from where the installed release has them."""

from __future__ import annotations

from http import HTTPStatus

try:
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
except ImportError:  # 0.24
    from vllm.entrypoints.serve.utils.error_response import create_error_response

__all__ = ["create_error_response", "unavailable"]


def unavailable(text: str) -> Exception:
    """Return an exception that vLLM answers with status 503."""
    try:
        from vllm.exceptions import GracefulHTTPError
    except ImportError:  # 0.24
        from vllm.entrypoints.openai.engine.protocol import GenerationError

        error = GenerationError(text)
        error.status_code = HTTPStatus.SERVICE_UNAVAILABLE
        return error  # type: ignore[no-any-return]
    return GracefulHTTPError(text, HTTPStatus.SERVICE_UNAVAILABLE)  # type: ignore[no-any-return]
