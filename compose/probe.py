#!/usr/bin/env -S python3 -IS
"""`probe 8000/readyz` ends 0 if this container answers 200 there: for images without curl.

Prints what was answered; `docker inspect` shows it. Imports next to nothing: it runs every few
seconds.
"""

import socket
import sys

port, _, path = sys.argv[1].partition("/")
with socket.create_connection(("127.0.0.1", int(port)), timeout=4) as connection:
    connection.sendall(f"GET /{path} HTTP/1.0\r\n\r\n".encode())
    answer = connection.makefile("rb").read().decode(errors="replace")
status_line, _, rest = answer.partition("\r\n")
print(rest.partition("\r\n\r\n")[2])  # noqa: T201
sys.exit(" 200 " not in status_line)
