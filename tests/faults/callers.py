"""Callers that send requests without a pause and record everything they receive."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from random import Random
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from octet.v1 import control_pb2 as control_wire
from octet.v1 import inference_pb2 as wire
from octet.v1 import operator_pb2 as operator_wire
from tests.faults.history import Account, Golden, History, Question
from tests.patience import PATIENCE

PROMPTS = tuple(f"question number {number}" for number in range(6))
LONGEST = 64
_SERVICE = "/octet.v1.Inference/"
_numbers = count(1)
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Keep receive buffers small, for callers that do not read.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4096),
)
_AnswerT = TypeVar("_AnswerT", bound=Message)


class RouterClient:
    """A connection to a router."""

    def __init__(self, address: str, *, patient: bool = False) -> None:
        """With `patient`, a call waits until there is a connection instead of failing at once. If the connection breaks
        later, the call still ends as UNAVAILABLE."""
        self._patient = patient
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._generate = self._channel.unary_stream(
            f"{_SERVICE}Generate", wire.InferRequest.SerializeToString, wire.InferEvent.FromString
        )

    async def close(self) -> None:
        await self._channel.close()

    async def ask(self, question: Question, *, leave_after: float | None = None, **fields: Any) -> Account:
        """Send a request and return what its caller received. The caller leaves after `leave_after` seconds, whatever
        has arrived."""
        is_connected = self._channel.get_state() is grpc.ChannelConnectivity.READY
        account = Account(f"f-{next(_numbers)}", question, began=time.monotonic(), connected=is_connected)
        call = self._generate(
            _request(account.request_id, question, **fields), timeout=PATIENCE, wait_for_ready=self._patient
        )
        try:
            async with asyncio.timeout(leave_after):
                async for event in call:
                    account.add_event(event, time.monotonic())
            account.codes.append(await call.code())
        except grpc.aio.AioRpcError as error:
            account.refused(error)
        except TimeoutError:
            account.left = True
            call.cancel()
        account.ended = time.monotonic()
        return account

    def unread(self, question: Question) -> tuple[str, Any]:
        """Start a call whose events are never read. Return its request id and the call."""
        name = f"f-{next(_numbers)}"
        return name, self._generate(_request(name, question, timeout_ms=120_000))

    async def receipt(self, request_id: str) -> wire.Receipt | None:
        """Return the receipt, or None for a request that was not admitted: the router keeps no receipt of it."""
        request = wire.GetReceiptRequest(request_id=request_id)
        try:
            return await self._call(_SERVICE + "GetReceipt", request, wire.Receipt)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise

    async def overview(self) -> operator_wire.Overview:
        path = "/octet.v1.Operator/GetOverview"
        return await self._call(path, operator_wire.GetOverviewRequest(), operator_wire.Overview)

    async def replicas(self) -> list[control_wire.ReplicaInfo]:
        asked = operator_wire.ListReplicasRequest()
        return list((await self.operate("ListReplicas", asked, operator_wire.ListReplicasResponse)).replicas)

    async def operate(self, name: str, request: Message, answer: type[_AnswerT]) -> _AnswerT:
        return await self._call(f"/octet.v1.Operator/{name}", request, answer)

    async def _call(self, path: str, request: Message, answer: type[_AnswerT]) -> _AnswerT:
        method = self._channel.unary_unary(path, type(request).SerializeToString, answer.FromString)
        answered: _AnswerT = await method(request, timeout=PATIENCE, wait_for_ready=self._patient)
        return answered


def _request(request_id: str, question: Question, **fields: Any) -> wire.InferRequest:
    given = {
        "request_id": request_id,
        "prompt": question.prompt,
        "force_specialists": [question.specialist],
        "max_tokens": question.max_tokens,
        "sampling": wire.Sampling(temperature=0.0),
        "ignore_eos": True,
        "timeout_ms": 30_000,
    }
    return wire.InferRequest(**{**given, **fields})


@asynccontextmanager
async def connected_client(address: str, *, patient: bool = False) -> AsyncIterator[RouterClient]:
    made = RouterClient(address, patient=patient)
    try:
        yield made
    finally:
        await made.close()


async def golden_run(router: RouterClient, specialists: Sequence[str], prompts: Sequence[str] = PROMPTS) -> Golden:
    """Ask every question once, one at a time, and return the answers. Call this before any fault."""
    found: dict[tuple[str, str], tuple[int, ...]] = {}
    for specialist in specialists:
        for prompt in prompts:
            account = await router.ask(Question(specialist, prompt, LONGEST))
            assert account.is_answered and len(account.tokens) == LONGEST, account
            found[specialist, prompt] = tuple(account.tokens)
    assert len(set(found.values())) == len(found), "equal answers would not show which lane answered"
    return found


class Callers:
    """Callers that each send one request after another. Their client does not retry."""

    def __init__(self, router: RouterClient, history: History, random: Random, *, pause: float = 0.0) -> None:
        self.router = router
        self.history = history
        self._random = random
        self._pause = pause
        self._ended = False
        self._under_way: set[object] = set()

    @asynccontextmanager
    async def calling(self, number: int, *, leave_share: float = 0.0) -> AsyncIterator["Callers"]:
        """Run `number` callers. They abandon the share `leave_share` of their requests."""
        tasks = [asyncio.create_task(self._call(leave_share)) for _ in range(number)]
        try:
            yield self
        finally:
            self._ended = True
            await asyncio.gather(*tasks)

    @asynccontextmanager
    async def coming(self, gaps: Iterator[float]) -> AsyncIterator["Callers"]:
        """Start a request after each of these gaps, in seconds, whether or not earlier requests have ended."""
        arriving = asyncio.create_task(self._arrive(gaps))
        try:
            yield self
        finally:
            self._ended = True
            await arriving

    async def _arrive(self, gaps: Iterator[float]) -> None:
        due = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for gap in gaps:
                due += gap
                while not self._ended and time.monotonic() < due:
                    await asyncio.sleep(min(0.1, due - time.monotonic()))
                if self._ended:
                    return
                tasks.create_task(self._ask(None))

    async def _call(self, leave_share: float) -> None:
        while not self._ended:
            leaves = self._random.random() < leave_share
            account = await self._ask(self._random.uniform(0, 0.2) if leaves else None)
            await asyncio.sleep(self._pause if account.is_answered else max(self._pause, 0.02))

    async def _ask(self, leave_after: float | None) -> Account:
        specialist, prompt = self._random.choice(list(self.history.golden))
        question = Question(specialist, prompt, self._random.randint(1, LONGEST))
        turn = object()
        self._under_way.add(turn)
        account = await self.router.ask(question, leave_after=leave_after)
        self._under_way.discard(turn)
        self.history.accounts.append(account)
        return account

    async def settled(self) -> None:
        """Wait until all requests that run now have ended."""
        now = set(self._under_way)
        await until(lambda: now.isdisjoint(self._under_way))

    async def answered(self, more: int) -> None:
        """Wait until `more` further answers have arrived."""
        enough = len(self.history.answered) + more
        await until(lambda: len(self.history.answered) >= enough)


async def until(condition: Callable[[], Any], seconds: float = PATIENCE, why: Callable[[], Any] | None = None) -> Any:
    """Poll `condition`, which may be a coroutine function, until it returns a true value, and return that value. Raises
    AssertionError after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError("the condition never became true" if why is None else await why())
        await asyncio.sleep(0.02)
