"""A token function that depends on everything a real model's would, so that any mistake shows in the output."""

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

from octet.identity import Lane
from specialist.request import Request
from specialist.steering import NothingFits

_PRIME = 2**61 - 1


@lru_cache(maxsize=1024)
def lane_number(lane: Lane) -> int:
    return int.from_bytes(lane.digest()[:7], "little")


@dataclass(frozen=True, slots=True)
class SimModel:
    """What a position computes to, its cell, depends on the cells of every position before it, as in attention.

    A context is the sum of the cells before a position. A hybrid also carries a recurrent state along.
    """

    vocab_size: int = 97
    hybrid: bool = False

    def cell(self, lane: int, context: int, token: int, position: int) -> int:
        mixed = (context + token * 0x9E3779B97F4A7C15) % _PRIME
        return (mixed * 0x2545F4914F6CDD1D + position * 0x1B873593 + lane) % _PRIME

    def absorb(self, state: int, token: int) -> int:
        return (state * 0x5851F42D4C957F2D + token + 1) % _PRIME if self.hybrid else 0

    def sample(self, context: int, state: int, seed: int, position: int, allowed: bytes | None = None) -> int:
        """`allowed` has one bit a token; what this model never says by itself is taken where nothing else fits."""
        mixed = (context + 3 * state + seed * 0x6A09E667F3BCC909 + position) % _PRIME
        drawn = mixed * 0x9E6C63D0876A9A47 % _PRIME >> 17
        if allowed is None:
            return drawn % self.vocab_size
        fitting = [token for token in range(8 * len(allowed)) if allowed[token >> 3] >> (token & 7) & 1]
        if not fitting:
            raise NothingFits("its structure leaves nothing to draw")
        usual = bisect_left(fitting, self.vocab_size) or len(fitting)
        return fitting[drawn % usual]

    def answer(self, request: Request, limit: int | None = None) -> tuple[int, ...]:
        """The one right answer, computed without blocks, batches or caches."""
        lane, context, state = lane_number(request.lane), 0, 0
        tokens, generated = list(request.prompt), 0
        most = request.max_tokens if limit is None else min(limit, request.max_tokens)
        position = 0
        while generated < most:
            while position < len(tokens):
                state = self.absorb(state, tokens[position])
                context += self.cell(lane, context, tokens[position], position)
                position += 1
            said = tokens[len(request.prompt) :]
            allowed = None if request.guide is None else request.guide.allowed(said)
            token = self.sample(context, state, request.seed, position, allowed)
            if token in request.stop_ids:
                break
            tokens.append(token)
            generated += 1
            if request.guide is not None and request.guide.ended(said, (token,)):
                break
        return tuple(tokens[len(request.prompt) :])
