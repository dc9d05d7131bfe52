"""Ask the router."""

import time
from threading import Event, Lock
from typing import Any, Unpack

import grpc
from google.protobuf.message import Message

from octet.sdk.answer import Answer, Chunk, Heard, TokenCount
from octet.sdk.asking import Asking
from octet.sdk.caller import LOOKUP_S, SERVICE
from octet.sdk.channel import serialize
from octet.sdk.conversation import Conversation
from octet.sdk.faults import cancelled
from octet.sdk.gathering import Gathering
from octet.sdk.jobs import Jobs
from octet.sdk.options import Options
from octet.sdk.receipt import Receipt
from octet.sdk.sync_caller import SyncCaller, unless_closed
from octet.v1 import inference_pb2 as wire

_Metadata = tuple[tuple[str, str], ...]


class Client(SyncCaller):
    """Safe to share between threads. `with Client("localhost:50051") as client: ...`, or `close()` at the end.

    Every call raises OctetError, in one of its kinds.
    """

    @property
    def jobs(self) -> Jobs:
        """Requests that nobody need wait for."""
        return Jobs(self._call, self._asking, lambda: self._channel, self._is_closed, self._clock, self.address)

    def stream(self, prompt: str | None = None, **options: Unpack[Options]) -> "Stream":
        """The answer as it comes: `with client.stream("...") as answer: for chunk in answer: ...`.

        Leaving the block, or dropping the stream, cancels what is unfinished.
        """
        prepared, asking = self._inferring(prompt, options)
        method = self._channel.unary_stream(SERVICE + "Generate", serialize, wire.InferEvent.FromString)
        return Stream(method, asking, prepared.metadata)

    def infer(self, prompt: str | None = None, **options: Unpack[Options]) -> Answer:
        """The whole answer at once. An error in its middle has what was said before as `partial`."""
        prepared, asking = self._inferring(prompt, options)
        method = self._channel.unary_stream(SERVICE + "Generate", serialize, wire.InferEvent.FromString)
        while True:
            message, seconds = asking.attempt()
            heard = Gathering(asking)
            try:
                with unless_closed(asking.is_closed, asking.request_id):
                    call = method(message, timeout=seconds, metadata=prepared.metadata)
                try:
                    for event in call:
                        heard.hear(event)
                finally:
                    call.cancel()
            except grpc.RpcError as error:
                wait = heard.failed(error)
            else:
                return heard.answer()
            time.sleep(wait)

    def route(self, prompt: str | None = None, **options: Unpack[Options]) -> Receipt:
        """The decision that would be taken now, without an answer."""
        prepared, asking = self._inferring(prompt, options)
        return Receipt.from_wire(self._call("Route", asking, wire.Receipt, prepared.metadata))

    def count_tokens(self, prompt: str | None = None, **options: Unpack[Options]) -> TokenCount:
        """How long the prompt, or the conversation, is for the specialist that would answer it now."""
        prepared, asking = self._inferring(prompt, options)
        counted = self._call("CountTokens", asking, wire.CountResponse, prepared.metadata)
        return TokenCount(counted.prompt_tokens, counted.specialist)

    def conversation(
        self, session_id: str | None = None, system: str | None = None, **options: Unpack[Options]
    ) -> Conversation:
        """Turn after turn, with all that was said before. The options are those of every turn."""
        return Conversation(self, session_id, system, **options)

    def receipt(self, request_id: str, *, tenant: str = "", timeout: float | None = LOOKUP_S) -> Receipt:
        """Receipts are kept for a while. `tenant`: another's, for an operator. Raises NotFound."""
        asking = self._looking_up(wire.GetReceiptRequest, request_id, timeout, tenant=tenant)
        return Receipt.from_wire(self._call("GetReceipt", asking, wire.Receipt))

    def cancel(self, request_id: str, *, timeout: float | None = LOOKUP_S) -> None:
        """Whoever reads its answer gets Cancelled. Raises NotFound."""
        self._call("Cancel", self._looking_up(wire.CancelRequest, request_id, timeout), wire.CancelResponse)

    def _call(
        self, name: str, asking: Asking, answer: type[Message], metadata: _Metadata = (), service: str = SERVICE
    ) -> Any:
        method = self._channel.unary_unary(service + name, serialize, answer.FromString)
        while True:
            message, seconds = asking.attempt()
            try:
                with unless_closed(asking.is_closed, asking.request_id):
                    response = method(message, timeout=seconds, metadata=metadata)
            except grpc.RpcError as error:
                wait = asking.failed(error)
            else:
                asking.answered()
                return response
            time.sleep(wait)


class Stream(Heard):
    """One answer. For one reader; `cancel` may come from any thread."""

    def __init__(self, method: Any, asking: Asking, metadata: _Metadata) -> None:
        super().__init__(asking)
        self._method = method
        self._metadata = metadata
        self._call: Any = None
        self._over = False
        self._cancelled = Event()
        self._lock = Lock()

    def __enter__(self) -> "Stream":
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> Chunk:
        while not self._over:
            chunk = self._step()
            if chunk is not None:
                return chunk
        raise StopIteration

    def cancel(self) -> None:
        """The reader gets Cancelled."""
        with self._lock:
            self._cancelled.set()
            if self._call is not None:
                self._call.cancel()

    def close(self) -> None:
        """Nothing more is read. Harmless at the end of a whole answer."""
        self._over = True
        self.cancel()

    def _step(self) -> Chunk | None:
        try:
            event = next(self._open(), None)
            if event is not None:
                return self._hear(event)
            self._over = True
            self._end()
        except grpc.RpcError as error:
            self._again(error)
        return None

    def _again(self, error: grpc.RpcError) -> None:
        """Wait for the next attempt; raise where there is none."""
        self._over = True
        wait = self._fail(error, cancelled=self._cancelled.is_set())
        self._over = False
        self._call = None
        self._cancelled.wait(wait)

    def _open(self) -> Any:
        with self._lock:
            if self._call is None:
                if self._cancelled.is_set():
                    self._over = True
                    raise cancelled(self.request_id)
                message, seconds = self._asking.attempt()
                with unless_closed(self._asking.is_closed, self._asking.request_id):
                    self._call = self._method(message, timeout=seconds, metadata=self._metadata)
            return self._call
