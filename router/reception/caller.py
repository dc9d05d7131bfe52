"""Whoever asks, as the door knows it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from octet.identity import digest_of


@dataclass(frozen=True, slots=True)
class Caller:
    tenant: str = ""
    """Those with the same share what is theirs: cached prefixes, receipts, jobs. Empty: nobody asks who is calling."""
    name: str = ""
    """Of the key that was shown; empty where none was asked for."""
    operates: bool = False
    """May see what is another tenant's, where it asks for it."""

    def salt(self, own: bytes) -> bytes:
        """What stands between cached blocks of different tenants, whatever salt the request itself brings."""
        return digest_of((b"tenant", self.tenant.encode(), own)) if self.tenant else own

    def may_see(self, tenant: str) -> bool:
        return self.operates or tenant == self.tenant


ANYONE = Caller()
_CALLER: ContextVar[Caller] = ContextVar("caller", default=ANYONE)


def current_caller() -> Caller:
    """Whoever the door has let in for what is being done now."""
    return _CALLER.get()


@contextmanager
def calling(caller: Caller) -> Iterator[None]:
    token = _CALLER.set(caller)
    try:
        yield
    finally:
        _CALLER.reset(token)
