"""Proposers of draft tokens: one knows the right answers and is sometimes wrong on purpose, one copies what it can."""

from collections.abc import Mapping
from random import Random

from specialist.engines.sim.engine import SimModel
from specialist.scheduling.drafting import DraftProposer
from specialist.scheduling.sequence import Request, Sequence


class EagerProposer(DraftProposer):
    """Proposes every token that a text lets expect, or else that the draft model guesses, whatever it costs."""

    def propose(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> dict[Sequence, tuple[int, ...]]:
        texts = {seq: text for seq in limits if (text := self._likelier_text(seq)).match}
        for seq, text in texts.items():
            seq.draft_source = text.source
        drafts = {seq: text.expected(limits[seq]) for seq, text in texts.items()}
        return drafts | self._guesses({seq: limit for seq, limit in limits.items() if seq not in texts})

    def _guesses(self, limits: Mapping[Sequence, int]) -> dict[Sequence, tuple[int, ...]]:
        if self.model is None:
            return {}
        model = self.model.model
        limits = {seq: n for seq, limit in limits.items() if (n := min(limit, model.context - seq.num_tokens)) > 0}
        try:
            model.read(list(limits), 3)
            guesses = model.guess({seq: limit for seq, limit in limits.items() if model.num_unread(seq) < 6})
        except Exception:
            model.forget_all()
            return {}
        for seq in guesses:
            seq.draft_source = "model"
        return guesses


class ModelProposer(EagerProposer):
    """Proposes only what the draft model guesses, whatever it costs."""

    def propose(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> dict[Sequence, tuple[int, ...]]:
        return self._guesses(limits)


class OracleProposer:
    def __init__(self, rng: Random, model: SimModel) -> None:
        self._rng = rng
        self._model = model
        self._texts: dict[str, tuple[int, ...]] = {}

    def learn(self, request: Request, answer: tuple[int, ...]) -> None:
        self._texts[request.request_id] = request.prompt + answer

    def forget(self, request_id: str) -> None:
        self._texts.pop(request_id, None)

    def wants(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> bool:
        return True

    def observe(self, num_tokens: int, seconds: float) -> None: ...

    def ended(self, seq: Sequence) -> None: ...

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
