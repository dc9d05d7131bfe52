"""Proposers of draft tokens: one knows the right answers and is sometimes wrong on purpose, one copies what it can."""

from collections.abc import Mapping
from random import Random

from specialist.engines.sim.engine import SimModel
from specialist.scheduling.drafting import OwnTextProposer
from specialist.scheduling.sequence import Request, Sequence


class EagerProposer(OwnTextProposer):
    """Proposes every token that the request's own text lets expect, whatever it costs."""

    def propose(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> dict[Sequence, tuple[int, ...]]:
        return {seq: self._read(seq).expected(limit) for seq, limit in limits.items()}


class OracleProposer:
    def __init__(self, rng: Random, model: SimModel) -> None:
        self._rng = rng
        self._model = model
        self._texts: dict[str, tuple[int, ...]] = {}

    def learn(self, request: Request, answer: tuple[int, ...]) -> None:
        self._texts[request.request_id] = request.prompt + answer

    def forget(self, request_id: str) -> None:
        self._texts.pop(request_id, None)

    def observe(self, num_tokens: int, seconds: float) -> None: ...

    def propose(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> dict[Sequence, tuple[int, ...]]:
        return {seq: self._guess(seq, limit) for seq, limit in limits.items()}

    def _guess(self, seq: Sequence, limit: int) -> tuple[int, ...]:
        tokens = seq.chain.view()
        roll = self._rng.random()
        if roll < 0.1:
            return ()
        if roll < 0.15:
            raise RuntimeError("a proposer may fail")
        known = tuple(tokens)
        for text in self._texts.values():
            if text[: len(tokens)] == known:
                guess = text[len(tokens) : len(tokens) + limit]
                return guess if roll < 0.7 else tuple(self._rng.choice((token, 1)) for token in guess)
        return (1,) * limit
