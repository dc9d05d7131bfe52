"""One call and its attempts, without any input or output: what sync and async do alike."""

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from octet.sdk.faults import cancelled as cancelled_here
from octet.sdk.faults import closed, is_unsaid_cancel, typed
from octet.sdk.retry import Effort, Left

_GRACE_S = 0.5
"""The server, which knows the deadline, gets to say so itself, with a receipt; the connection's own comes after."""


class Asking:
    def __init__(
        self, renew: Callable[[Left], Message], effort: Effort, address: str, is_closed: Callable[[], bool]
    ) -> None:
        self._renew = renew
        self._effort = effort
        self._address = address
        self.is_closed = is_closed
        """The client that asks."""
        self.request_id = ""
        """Of the last attempt."""

    def attempt(self) -> tuple[Message, float | None]:
        """What to send, and the seconds gRPC may take for it. Raises Cancelled when the client is closed."""
        if self.is_closed():
            raise closed(self.request_id)
        left = self._effort.left()
        message: Any = self._renew(left)
        self.request_id = getattr(message, "request_id", "")
        return message, None if left.total is None else left.total + _GRACE_S

    def failed(self, error: Any, *, begun: bool = False, cancelled: bool = False) -> float:
        """Seconds until the next attempt. Raises OctetError when there is none: never once an answer has begun, nor for
        what was `cancelled` here."""
        problem = typed(error, address=self._address, request_id=self.request_id, begun=begun)
        if is_unsaid_cancel(problem) and cancelled:
            raise cancelled_here(self.request_id) from None
        if is_unsaid_cancel(problem) and self.is_closed():
            raise closed(self.request_id) from None
        wait = None if begun else self._effort.wait_after(problem)
        if wait is None:
            raise problem from None
        return wait

    def answered(self) -> None:
        self._effort.answered()
