"""A call that ends while its headers are being sent still gets its status."""

import asyncio
from typing import Any

import grpc
import pytest

from octet.rpc.handlers import refuse, send_initial_metadata, streaming_handler
from octet.rpc.refusal import cancelled
from octet.v1 import specialist_pb2 as wire
from tests.patience import PATIENCE


class SlowContext:
    """A context that sends its headers slowly."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.sent = False
        self.error: Exception | None = None

    async def send_initial_metadata(self, _: Any) -> None:
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        self.sent = True


@pytest.mark.parametrize("error", [None, RuntimeError("the call is over")])
async def test_initial_metadata_is_sent_completely_despite_cancellation(error: Exception | None) -> None:
    context = SlowContext()
    context.error = error
    announcing = asyncio.create_task(send_initial_metadata(context, ()))
    await asyncio.sleep(0)
    announcing.cancel()
    await asyncio.sleep(0.01)
    assert not announcing.done()
    context.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await announcing
    assert context.sent == (error is None)


async def test_call_that_ends_at_once_gets_its_status() -> None:
    """The call is cancelled at each step of its start-up, on a real server."""
    turns = iter(range(200))

    async def serve(_request: wire.GenerateRequest, context: Any) -> None:
        saying = asyncio.create_task(_say(context))
        for _turn in range(next(turns) % 8):
            await asyncio.sleep(0)
        saying.cancel()
        try:
            await saying
        except asyncio.CancelledError:
            await refuse(context, cancelled())

    server = grpc.aio.server()
    handlers = {"Generate": streaming_handler(wire.GenerateRequest, None, serve, 1000)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("octet.v1.Specialist", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    codes = set()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for _ in range(200):
            call = channel.unary_stream("/octet.v1.Specialist/Generate")(b"", timeout=PATIENCE)
            codes.add(await call.code())
    await server.stop(0)
    assert codes == {grpc.StatusCode.CANCELLED}


async def _say(context: Any) -> None:
    await send_initial_metadata(context, ())
    await asyncio.get_running_loop().create_future()
