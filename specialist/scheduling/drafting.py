"""Proposes drafts, tokens that probably follow: one step then computes several tokens. The engine's own samples decide
which of them are kept."""

from collections.abc import Mapping
from collections.abc import Sequence as Tokens
from heapq import heapify, heappop, heapreplace
from math import inf

from specialist.scheduling.copied_text import CopiedText, HitRates, LaneText, LaneTexts, OwnText
from specialist.scheduling.draft_model import DraftModel
from specialist.scheduling.model_drafts import LEAST_GAIN, CopiedDrafts, ModelDrafts
from specialist.scheduling.sequence import Sequence
from specialist.scheduling.step_cost import StepCost

_LEAST_LIKELY = 0.1  # no step is so cheap that a token with a smaller likelihood pays
_MOST_READ = 4096  # tokens of a prompt that one step adds to the index
_FEW, _LIKELY = 4, 0.8  # a step that is larger than all measured ones is tried with a few drafts that are likely


class DraftProposer:
    """Proposes the continuations of the texts that sequences copy: their own, and with `lane` other answers of their
    lane. Of all their next tokens, a step checks the likeliest ones: as many as let it compute most tokens in a second,
    by their likelihoods and the measured time of steps. With `model`, a smaller model guesses where that is faster
    still."""

    def __init__(
        self, lane: LaneTexts | None = None, model: DraftModel | None = None, itl_seconds: float = inf
    ) -> None:
        """`itl_seconds`: the longest time for which `model` may read in one step."""
        self.lane = lane
        self.model = None if model is None else ModelDrafts(model, itl_seconds)
        self._own_rates, self._lane_rates = HitRates(), HitRates()
        self._copied: dict[Sequence, LaneText] = {}
        self._cost = StepCost()
        self._guessing = 0.0  # the seconds that the model took for the next step

    @property
    def num_failed(self) -> int:
        return 0 if self.model is None else self.model.num_failed

    def observe(self, num_tokens: int, seconds: float) -> None:
        seconds -= self._guessing
        self._guessing = 0.0
        self._cost.learn(num_tokens, seconds)
        if self.model is not None:
            self.model.observe(seconds)

    def propose(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> dict[Sequence, tuple[int, ...]]:
        texts, times = self._known(limits, num_rows, most)
        if not times:
            return {}
        copied = self._copy(texts, limits, num_rows, most, times)
        drafts = {seq: texts[seq].expected(window) for seq, window in copied.windows.items()}
        for seq in drafts:
            seq.draft_source = texts[seq].source
        if self.model is not None:
            began = self.model.model.seconds
            seconds = [time * self._cost.pace for time in times]
            guesses = self.model.guess(limits, num_rows, most, seconds, copied)
            self._guessing = self.model.model.seconds - began
            for seq in guesses:
                seq.draft_source = "model"
            drafts |= guesses
        return drafts

    def wants(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> bool:
        if self.model is not None and self.model.wants(limits):
            return True
        texts, times = self._known(limits, num_rows, most)
        return bool(times and self._copy(texts, limits, num_rows, most, times).windows)

    def _known(
        self, limits: Mapping[Sequence, int], num_rows: int, most: int
    ) -> tuple[dict[Sequence, CopiedText], list[float]]:
        """Return the texts that are copied, and the times of steps. Without these, nothing can be guessed: nothing is
        copied, or no step without drafts was measured yet."""
        texts = {seq: text for seq in limits if (text := self._likelier_text(seq)).match}
        times = self._cost.times(num_rows, num_rows + most) if texts or self.model is not None else []
        return texts, times

    def ended(self, seq: Sequence) -> None:
        self._copied.pop(seq, None)
        if self.lane is not None:
            self.lane.learn(seq.chain.root, seq.chain.view(), len(seq.request.prompt))
        if self.model is not None:
            self.model.model.forget(seq)

    def _copy(
        self,
        texts: Mapping[Sequence, CopiedText],
        limits: Mapping[Sequence, int],
        num_rows: int,
        most: int,
        times: Tokens[float],
    ) -> CopiedDrafts:
        num_tried = max(_FEW, num_rows // 2)  # beyond what was measured
        likeliest = self._likeliest(texts, limits, min(most, len(times) - 1 + num_tried))
        num_chosen = _best_number([likelihood for likelihood, _ in likeliest], times, num_rows)
        windows: dict[Sequence, int] = {}
        kept: dict[Sequence, float] = {}
        for likelihood, seq in likeliest[:num_chosen]:
            windows[seq] = windows.get(seq, 0) + 1
            kept[seq] = kept.get(seq, 0.0) + likelihood
        return CopiedDrafts(windows, kept)

    def _likelier_text(self, seq: Sequence) -> CopiedText:
        """Return the text from which the sequence's next token more likely comes: in doubt its own."""
        own, other = self._own_text(seq), self._lane_text(seq)
        if other is None or not other.match or (own.match and own.rate(0) >= other.rate(0)):
            return own
        return other

    def _lane_text(self, seq: Sequence) -> LaneText | None:
        if self.lane is None:
            return None
        text = self._copied.get(seq)
        if text is None:
            text = LaneText(self._lane_rates, self.lane, seq.chain.root, len(seq.request.prompt))
            self._copied[seq] = text
        text.read(seq.chain.view())
        return text

    def _own_text(self, seq: Sequence) -> OwnText:
        """Return the sequence's own text, with its newest tokens. A long prompt is read in parts, one for each step."""
        text, known = seq.own_text, seq.chain.view()
        if text is None:
            text = seq.own_text = OwnText(self._own_rates)
        num_read, num_prompt = len(text), len(seq.request.prompt)
        if num_read < num_prompt:
            text.extend(known[num_read : min(num_prompt, num_read + _MOST_READ)], is_prompt=True)
            if len(text) < num_prompt:
                text.match = 0
                return text
        if len(text) < len(known):
            text.extend(known[len(text) :])
        return text

    @staticmethod
    def _likeliest(
        texts: Mapping[Sequence, CopiedText], limits: Mapping[Sequence, int], most: int
    ) -> list[tuple[float, Sequence]]:
        """Return the next tokens in order of likelihood, each with its sequence: those of a sequence in their order."""
        heap = [(-text.rate(0), seq.index, 1, seq) for seq, text in texts.items()]
        heapify(heap)
        found: list[tuple[float, Sequence]] = []
        while heap and len(found) < most:
            negative, index, number, seq = heap[0]
            if -negative < _LEAST_LIKELY:
                break
            found.append((-negative, seq))
            if number < limits[seq]:
                heapreplace(heap, (negative * texts[seq].rate(number), index, number + 1, seq))
            else:
                heappop(heap)
        return found


def _best_number(likelihoods: Tokens[float], times: Tokens[float], num_rows: int) -> int:
    """Return how many of the drafts, in this order, let a step compute most tokens in a second. `times` are those of
    steps with 0, 1, 2 or more drafts. If it is as many as were measured, more are tried if they are likely."""
    best, chosen, kept = LEAST_GAIN * num_rows / times[0], 0, float(num_rows)
    for number, (likelihood, time) in enumerate(zip(likelihoods, times[1:], strict=False), 1):
        kept += likelihood
        if kept > best * time:
            best, chosen = kept / time, number
    if chosen < len(times) - 1:
        return chosen
    return chosen + sum(likelihood >= _LIKELY for likelihood in likelihoods[chosen:])
