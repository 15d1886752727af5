"""`python -m load_tests.faults.batches.s3_server PORT`: moto's S3, which can go away and come back.

SIGUSR1 closes its port, SIGUSR2 opens it again; what is stored stays. It has one bucket. It ends
with its parent.
"""

from __future__ import annotations

import logging
import signal
import sys

from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

from load_tests.faults.batches.storages import AWAY, BACK, BUCKET, REGION
from shared.platform.death_signal import request_signal

_SIGNALS = {AWAY, BACK, signal.SIGTERM}
_ACCOUNT = "123456789012"


def main() -> None:
    """Serve until SIGTERM."""
    request_signal(signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    s3_backends[_ACCOUNT]["aws"].create_bucket(BUCKET, REGION)
    port = int(sys.argv[1])
    server = ThreadedMotoServer("127.0.0.1", port)
    server.start()
    while (number := signal.sigwait(_SIGNALS)) != signal.SIGTERM:
        if number == AWAY:
            server.stop()
        else:
            server = ThreadedMotoServer("127.0.0.1", port)
            server.start()


if __name__ == "__main__":
    main()
