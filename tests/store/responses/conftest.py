"""These tests run on one kind of server."""

from tests.redis.conftest import queue as queue
from tests.redis.conftest import store as store
