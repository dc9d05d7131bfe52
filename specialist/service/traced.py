"""One call whose trace is collected: the moments that nobody else writes down."""

from octet.rpc.calls import Context
from octet.telemetry.traceparent import HEADER, STATE, Parent, parent_of
from specialist.service.job import Job

_STATE_BYTES = 512


class Traced:
    """Times are the replica's clock's."""

    __slots__ = ("began", "decided", "is_shadow", "job", "parent", "request_id", "state")

    def __init__(self, parent: Parent, state: str, request_id: str, is_shadow: bool, began: float) -> None:
        self.parent = parent
        """The caller's span."""
        self.state = state
        self.request_id = request_id
        """The caller's, unchecked."""
        self.is_shadow = is_shadow
        self.began = began
        self.decided = began
        """When the door gave its verdict."""
        self.job: Job | None = None

    def let_in(self, job: Job, now: float) -> None:
        self.job = job
        self.decided = now

    @property
    def is_live(self) -> bool:
        """The engine has it, and says how it ends."""
        return self.job is not None


def trace_in(context: Context) -> tuple[Parent | None, str]:
    """What the call says of its trace: the first parent, and its state as far as it is plain and short."""
    parent: Parent | None = None
    state = ""
    for key, value in context.invocation_metadata() or ():
        if key == HEADER and parent is None and isinstance(value, str):
            parent = parent_of(value)
        elif key == STATE and isinstance(value, str) and value.isascii() and value.isprintable():
            state = state or value
    return parent, state if parent is not None and len(state) <= _STATE_BYTES else ""
