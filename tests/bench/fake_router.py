"""A minimal router that forwards bytes to a backend: `fake_router.py PORT BACKEND_PORT [N]`. With N, the router exits
at the connection after the Nth."""

import asyncio
import sys


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


async def _serve(port: int, backend: int, most: int) -> None:
    taken = 0

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        taken += 1
        if taken > most:
            print("had enough", file=sys.stderr, flush=True)
            sys.exit(3)
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", backend)
        await asyncio.gather(_pump(reader, back_writer), _pump(back_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(pass_on, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else sys.maxsize))
