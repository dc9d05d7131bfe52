"""Whose request is being handled: for the lines that are logged meanwhile, whoever writes them."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Handled(NamedTuple):
    request_id: str = ""
    trace_id: str = ""


NOBODY = Handled()
_HANDLED: ContextVar[Handled] = ContextVar("handled", default=NOBODY)


def handled_now() -> Handled:
    return _HANDLED.get()


def handle(request_id: str, trace_id: str = "") -> None:
    """For the rest of this task."""
    _HANDLED.set(Handled(request_id, trace_id))


@contextmanager
def handling(request_id: str, trace_id: str = "") -> Iterator[None]:
    token = _HANDLED.set(Handled(request_id, trace_id))
    try:
        yield
    finally:
        _HANDLED.reset(token)
