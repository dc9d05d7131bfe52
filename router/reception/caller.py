"""Whoever asks, as the door knows it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    tenant: str = ""
    """Those with the same share what is theirs: cached prefixes, receipts, jobs. Empty: nobody asks who is calling."""


ANYONE = Caller()
