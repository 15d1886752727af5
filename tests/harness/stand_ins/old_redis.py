"""A Redis server that is too old: `old_redis.py --port N`, or `--unixsocket PATH`."""

import asyncio
import sys

VERSION = b"redis_version:6.2.14\r\nredis_mode:standalone\r\n"
REPLIES = {
    b"INFO": b"$%d\r\n%s\r\n" % (len(VERSION), VERSION),
    b"HELLO": b"%1\r\n+proto\r\n:3\r\n",
    b"PING": b"+PONG\r\n",
    b"CLIENT": b"+OK\r\n",
    b"SELECT": b"+OK\r\n",
}


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while head := await reader.readline():
        words = []
        for _ in range(int(head[1:])):
            size = int((await reader.readline())[1:])
            words.append((await reader.readexactly(size + 2))[:-2])
        writer.write(REPLIES.get(words[0].upper(), b"-ERR unknown command\r\n"))
    writer.close()


async def main() -> None:
    options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    if path := options.get("--unixsocket"):
        server = await asyncio.start_unix_server(serve, path)
    else:
        server = await asyncio.start_server(serve, "127.0.0.1", int(options["--port"]))
    await server.serve_forever()


asyncio.run(main())
