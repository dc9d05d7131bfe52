"""The blocking client."""

from threading import Event, Lock
from typing import Any, Unpack

import grpc

from octet.client.answer import Answer, Chunk, StreamBase
from octet.client.base import LOOKUP_TIMEOUT_S, SyncClientBase
from octet.client.conversation import Conversation
from octet.client.errors import cancelled_error
from octet.client.jobs import JobsClient
from octet.client.options import Options
from octet.client.receipts import Receipt
from octet.client.records import TokenCount
from octet.client.request import Attempts


class Client(SyncClientBase):
    """A client that threads may share: `with Client(address) as client: ...`. A failed call raises an OctetError."""

    @property
    def jobs(self) -> JobsClient:
        return JobsClient(self)

    def stream(self, prompt: str | None = None, **options: Unpack[Options]) -> "Stream":
        """Stream the answer: `with client.stream("...") as answer: for chunk in answer: ...`. Leaving the block or
        dropping the stream cancels an unfinished request."""
        return self._stream(prompt, options)

    def _stream(self, prompt: str | None, options: Options, *, is_whole: bool = False) -> "Stream":
        return Stream(self._method("Inference.Generate"), self._prepare(prompt, options), is_whole=is_whole)

    def infer(self, prompt: str | None = None, **options: Unpack[Options]) -> Answer:
        """Return the whole answer. If it breaks off, the error holds the text so far in `partial`."""
        with self._stream(prompt, options, is_whole=True) as stream:
            for _ in stream:
                pass
            return stream.answer()

    def route(self, prompt: str | None = None, **options: Unpack[Options]) -> Receipt:
        """Return the decision that would be made now, without generating an answer."""
        return Receipt.from_wire(self._call("Inference.Route", self._prepare(prompt, options)))

    def count_tokens(self, prompt: str | None = None, **options: Unpack[Options]) -> TokenCount:
        """Count the tokens of the prompt or conversation for the specialist that would answer it now."""
        return TokenCount.from_wire(self._call("Inference.CountTokens", self._prepare(prompt, options)))

    def conversation(
        self, session_id: str | None = None, system: str | None = None, **options: Unpack[Options]
    ) -> Conversation:
        """Start a conversation that keeps its history. The options apply to every turn."""
        return Conversation(self, session_id, system, **options)

    def receipt(self, request_id: str, *, tenant: str = "", timeout: float | None = LOOKUP_TIMEOUT_S) -> Receipt:
        """Return a receipt; it is kept for a limited time. An operator may name another `tenant`. Raises NotFound."""
        found = self._look_up("Inference.GetReceipt", timeout, request_id=request_id, tenant=tenant)
        return Receipt.from_wire(found)

    def cancel(self, request_id: str, *, timeout: float | None = LOOKUP_TIMEOUT_S) -> None:
        """Cancel the request; its reader gets Cancelled. Raises NotFound for an unknown request."""
        self._look_up("Inference.Cancel", timeout, request_id=request_id)


class Stream(StreamBase):
    """A streamed answer for a single reader. `cancel` may be called from any thread."""

    def __init__(self, method: Any, attempts: Attempts, *, is_whole: bool = False) -> None:
        super().__init__(method, attempts, is_whole=is_whole)
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
        while not self._is_over:
            chunk = self._read()
            if chunk is not None:
                return chunk
        raise StopIteration

    def cancel(self) -> None:
        """Cancel the request; its reader gets Cancelled."""
        with self._lock:
            self._cancelled.set()
            if self._call is not None:
                self._call.cancel()

    def close(self) -> None:
        """End reading and cancel the request unless it has ended."""
        self._is_over = True
        self.cancel()

    def _read(self) -> Chunk | None:
        try:
            event = next(self._open(), None)
            if event is not None:
                return self._handle(event)
            self._finish()
        except grpc.RpcError as error:
            self._cancelled.wait(self._fail(error, cancelled=self._cancelled.is_set()))
        return None

    def _open(self) -> Any:
        with self._lock:
            if self._call is None:
                if self._cancelled.is_set():
                    self._is_over = True
                    raise cancelled_error(self.request_id)
                message, options = self._attempts.start()
                self._call = self._method(message, **options)
            return self._call
