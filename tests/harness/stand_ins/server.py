"""A stand-in for gateway or worker in tests of the supervisor: `server.py gateway|worker FLAG...`.

It serves /readyz and /v1/models, prints its pid, and on SIGTERM prints which process still answers.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

role, *flags = sys.argv[1:]
requests = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        if self.path == "/v1/models":
            # The real gateway lists a new worker a moment after the worker is ready.
            self.wfile.write(b'{"data": [{"id": "stand-in"}]}' if requests else b'{"data": []}')
            requests.append(self.path)

    def log_message(self, *args):
        print("noise: a request", file=sys.stderr, flush=True)


def drain(signum, frame):
    if "ignores-sigterm" in flags:
        print("ignored SIGTERM", flush=True)
        return
    if role == "worker":
        url = f"http://127.0.0.1:{os.environ['GATEWAY_PORT']}/readyz"
        print(f"drained; gateway says {urllib.request.urlopen(url).status}", flush=True)
    else:
        redis = urlsplit(os.environ["FLOTILLA_REDIS_URL"])
        near = redis.scheme == "unix"
        with socket.socket(socket.AF_UNIX if near else socket.AF_INET) as connection:
            connection.connect(redis.path if near else (redis.hostname, redis.port))
            connection.sendall(b"PING\r\n")
            answer = connection.recv(5).decode()
            print(f"closed; Redis says {answer} at {redis.scheme}://", flush=True)
    os._exit(0)


if "dies" in flags:
    print("no model of this name", file=sys.stderr)
    sys.exit(3)
signal.signal(signal.SIGTERM, drain)
if "has-engine" in flags:
    engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(f"engine pid={engine.pid}", flush=True)
if "waits" in flags:
    print("waits", flush=True)
    while not Path("go").exists():
        time.sleep(0.05)
variable = "FLOTILLA_PORT" if role == "gateway" else "FLOTILLA_WORKER_PORT"
server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get(variable, "0"))), Handler)
print(f"serves as {os.environ.get('FLOTILLA_WORKER_ID', role)} pid={os.getpid()}", flush=True)
server.serve_forever()
