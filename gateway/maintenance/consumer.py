"""Celery's consumer, made to survive messages that Celery can't make sense of.

Whoever writes rubbish into the maintenance process's database costs the maintenance process one message, not their process:
Celery would end, put the message back, and end again after every start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery.worker.consumer import Consumer

from shared.platform.redis_client import RedisError

log = logging.getLogger("flotilla.maintenance")


class TolerantConsumer(Consumer):  # type: ignore[misc]  # Celery has no types
    """Throws away what is no message of ours."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # What is not even JSON raises in the transport, when it is gone from Redis already. To
        # connect anew is how Celery goes on after an error there.
        self.connection_errors: tuple[type[Exception], ...] = (Exception,)

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], None]:
        """As Celery's own; called with each message."""
        handle = super().create_task_handler(*args, **kwargs)

        def on_message(message: Any) -> None:
            try:
                handle(message)
            except (RedisError, OSError):  # Celery's own tuple of such errors has KeyError in it
                raise
            except Exception as error:
                log.warning("a message that is no task is thrown away: %r", error)
                message.reject_log_error(log, (RedisError, OSError))

        return on_message
