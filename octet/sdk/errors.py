"""What can go wrong, one class for each thing that a caller would do about it."""

from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from octet.sdk.receipt import Receipt


class OctetError(Exception):
    """A call failed; the message says what to do."""

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode,
        reason: str = "",
        field: str = "",
        limit: str = "",
        value: str = "",
        retry_after: float | None = None,
        receipt: "Receipt | None" = None,
        request_id: str = "",
        partial: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        """The server's word for it, such as "queue_full"; empty when it never got to say one."""
        self.field = field
        """The field to blame."""
        self.limit = limit
        """What would have been right."""
        self.value = value
        """What came instead, shortened."""
        self.retry_after = retry_after
        """Seconds after which trying again is worthwhile; None where that is not known."""
        self.receipt = receipt
        """None where the server sent none."""
        self.request_id = request_id
        self.partial = partial
        """What the answer had said by then, which is not all of it; empty where nothing had come."""

    def __reduce__(self) -> tuple[Any, ...]:
        """So that it can come out of another process."""
        return partial(type(self), code=self.code), self.args, vars(self).copy()


class InvalidRequest(OctetError):
    """Put right what `field` names."""


class NotFound(OctetError):
    """No such specialist, adapter or request."""


class Unauthenticated(OctetError):
    """The router wants a key: none was shown, or one that it does not know."""


class Forbidden(OctetError):
    """The key may not do this; another might."""


class NoSpecialist(OctetError):
    """Nobody in the ensemble should answer this; the receipt shows who was considered."""


class Busy(OctetError):
    """Too many wait; worth trying again after `retry_after`."""


class Unavailable(OctetError):
    """Nothing answers, or nothing that could serve this is ready; worth trying again."""


class ReplicaLost(OctetError):
    """The answer was cut off: its replica was lost, or the router. What came before stands; nothing more will come."""


class CallerStalled(OctetError):
    """The stream was not read for too long."""


class DeadlineExceeded(OctetError):
    """The time given has passed."""


class Cancelled(OctetError):
    """By this caller, or by whoever else knows the request's id."""


class ServerError(OctetError):
    """The fault is not the caller's; the server's log says more."""
