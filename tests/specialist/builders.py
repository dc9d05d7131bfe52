"""Requests and sequences with defaults for every field that a test does not set."""

from dataclasses import replace
from typing import Any

from kvpool import TokenChain
from octet.identity import Lane
from specialist.scheduling.sequence import Request, Sequence

BARE = Lane("writer", "0" * 64)
LANES = [BARE, replace(BARE, adapters=("a" * 64,)), replace(BARE, adapters=("a" * 64, "b" * 64))]

_PLAIN = Request("plain", BARE, prompt=(1, 2, 3), max_tokens=4)


def make_request(request_id: str = "plain", **fields: Any) -> Request:
    return replace(_PLAIN, request_id=request_id, **fields)


def make_sequence(index: int, **fields: Any) -> Sequence:
    request = make_request(f"r{index}", **fields)
    chain = TokenChain(b"root", 4, request.prompt)
    longest = len(chain) + request.max_tokens
    return Sequence(request, chain, index, max_total_tokens=longest, draft_window=0, stack=request.lane.adapters)
