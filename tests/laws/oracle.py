"""A proposer of draft tokens that knows the right answers and is sometimes wrong on purpose."""

from collections.abc import Sequence
from random import Random

from specialist.engines.sim.engine import SimModel
from specialist.scheduling.sequence import Request


class OracleProposer:
    def __init__(self, rng: Random, model: SimModel) -> None:
        self._rng = rng
        self._model = model
        self._texts: dict[str, tuple[int, ...]] = {}

    def learn(self, request: Request, answer: tuple[int, ...]) -> None:
        self._texts[request.request_id] = request.prompt + answer

    def forget(self, request_id: str) -> None:
        self._texts.pop(request_id, None)

    def propose(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
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
