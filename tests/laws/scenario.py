"""Random configurations and requests for a run, drawn from a seed."""

from dataclasses import dataclass, replace
from random import Random

from octet.identity import Lane
from specialist.scheduling.sequence import Request

BARE = Lane("template", "a" * 64)
ADAPTERS: tuple[tuple[str, ...], ...] = ((), ("b" * 64,), ("c" * 64,), ("b" * 64, "c" * 64))
SALTS = (b"", b"tenant")
STOP = frozenset({0})


@dataclass(frozen=True, slots=True)
class Setup:
    """A replica so small that its resources run out all the time."""

    block_size: int
    num_blocks: int
    max_running: int
    max_step_tokens: int
    chunk_tokens: int | None
    """Limit on the tokens of a step, or None if measured time limits a step instead."""
    watermark: float
    age_bound: int
    prefix_cache: bool
    hybrid: bool
    fault_rate: float

    @classmethod
    def draw(cls, rng: Random) -> "Setup":
        return cls(
            block_size=rng.choice((1, 2, 3, 4, 8)),
            num_blocks=rng.randint(7, 28),
            max_running=rng.randint(1, 6),
            max_step_tokens=rng.choice((3, 8, 64)),
            chunk_tokens=rng.choice((1, 2, 5, 16, None)),
            watermark=rng.choice((0.0, 0.05, 0.2)),
            age_bound=rng.randint(1, 4),
            prefix_cache=rng.random() < 0.85,
            hybrid=rng.random() < 0.3,
            fault_rate=rng.choice((0.0, 0.05, 0.25)),
        )


class Callers:
    """Draws requests whose prompts share prefixes, across adapters, tenants and priorities. If they are `alike`, many
    have the same prompt, and so the same answer."""

    def __init__(self, rng: Random, vocab_size: int, *, alike: bool = False) -> None:
        self._alike = alike
        self._rng = rng
        self._vocab_size = vocab_size
        self._stems = [self._tokens(12) for _ in range(2)]
        self._count = 0

    def request(self, now: float) -> Request:
        rng = self._rng
        self._count += 1
        stem = rng.choice(self._stems)[: rng.choice((0, 4, 8, 12))]
        request = self._request(now, stem)
        if self._alike and stem:
            request = replace(request, prompt=stem, max_tokens=12, seed=0, draft_window=rng.choice((2, 4)))
        return request

    def _request(self, now: float, stem: tuple[int, ...]) -> Request:
        rng = self._rng
        return Request(
            request_id=f"r{self._count}",
            lane=Lane(BARE.specialist, BARE.revision, rng.choice(ADAPTERS[: rng.choice((1, 2, 4))])),
            prompt=stem + self._tokens(rng.choice((0, 1, 2, 6)) if stem else rng.randint(1, 8)),
            max_tokens=rng.choice((1, 2, 5, 12)),
            priority=rng.choice((0, 0, 0, 1, 2, 5)),
            arrival=now if rng.random() < 0.8 else 0.0,
            deadline=now + rng.uniform(0.0, 0.4) if rng.random() < 0.1 else None,
            first_deadline=now + rng.uniform(0.0, 0.4) if rng.random() < 0.1 else None,
            stop_ids=STOP,
            seed=rng.randrange(3),
            draft_window=rng.choice((0, 0, 2, 4)),
            tenant_salt=rng.choice(SALTS),
        )

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._rng.randrange(self._vocab_size) for _ in range(count))
