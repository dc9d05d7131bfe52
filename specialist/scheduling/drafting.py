"""Drafts copied from the request's own text: where the newest tokens occurred before, the tokens after them probably
follow again. One step then computes several tokens; the engine's own samples decide which of them are kept."""

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from collections.abc import Sequence as Tokens
from heapq import heapify, heappop, heapreplace

from specialist.scheduling.sequence import Sequence

_SHORTEST = 3  # tokens that must occur again before a copy is expected
_LONGEST = 32  # a longer match is not measured
_NEAR = 16  # tokens after a lost place in which a match of two tokens is enough: a copy that was edited goes on there
_KEPT = 0.98  # the weight that a prediction keeps when the next one has been checked
_OWN_WEIGHT = 4.0  # predictions of other requests count as so many of the request's own
_LEAST_GAIN = 1.1  # drafts must make a step so much faster for each token that they are worth their risk
_LEAST_LIKELY = 0.1  # no step is so cheap that a token with a smaller likelihood pays
_EXACT, _ROUNDED = 16, 8  # steps with more than 16 tokens are measured together with those of up to 7 tokens less
_NEW_STEP, _NEW_PACE = 0.05, 0.2  # the weights of the newest step
_SETTLED = 8  # steps of a size whose mean is known well
_DOUBT = 0.5  # a size that was measured once may take so much longer than it did
_OUTLIER = 2.0  # a stall counts for at most so many times the usual time
_RECENT_STEPS = 128
_MOST_READ = 4096  # tokens of a prompt that one step adds to the index
_FEW, _LIKELY = 4, 0.8  # a step that is larger than all measured ones is tried with a few drafts that are likely


class StepCost:
    """The relative time of a decode step by its number of tokens, from the recent steps. The machine's pace, which
    changes for steps of all sizes alike, is left out. Between two measured numbers, the time is interpolated or, if
    they are large, that of the larger one: kernels compute many tokens in tiles. What was not measured lately is
    forgotten."""

    def __init__(self) -> None:
        self._points: dict[int, tuple[float, int, int]] = {}  # time, steps, and the number of the last one, by tokens
        self._pace = 1.0
        self._num_steps = 0

    def learn(self, num_tokens: int, seconds: float) -> None:
        if seconds <= 0:
            return
        self._num_steps += 1
        at = _filed(num_tokens)
        known, time = self._points.pop(at, None), seconds / self._pace  # the newest point is the last
        count = 1
        if known is not None:
            before, count = known[0], known[1] + 1
            ratio = min(time / before, _OUTLIER)
            time = before * (1 + max(_NEW_STEP, 1 / count) * (ratio - 1))
            if count > _SETTLED:  # only a time that is known well shows how fast the machine is now
                self._pace *= 1 + _NEW_PACE * (ratio - 1)
        self._points[at] = time, count, self._num_steps
        while self._num_steps - self._points[oldest := next(iter(self._points))][2] > _RECENT_STEPS:
            del self._points[oldest]

    def times(self, first: int, last: int) -> list[float]:
        """Return the expected times of steps with `first` to `last` tokens. The list ends where too little is known:
        nothing so small was measured, or nothing so large."""
        sizes = sorted(self._points)
        found: list[float] = []
        for num_tokens in range(first, last + 1):
            at = _filed(num_tokens)
            index = bisect_left(sizes, at)
            if index == len(sizes) or (index == 0 and sizes[0] != at):
                break
            above = sizes[index]
            time = self._time(above)
            if above != at and above <= _EXACT:
                below = sizes[index - 1]
                least = self._time(below)
                time = least + (time - least) * (at - below) / (above - below)
            found.append(max(time, found[-1]) if found else time)
        return found

    def _time(self, size: int) -> float:
        time, count, _ = self._points[size]
        return time * (1 + _DOUBT / count) if count <= _SETTLED else time


def _filed(num_tokens: int) -> int:
    """Return the number of tokens under which the time of such a step is kept."""
    return num_tokens if num_tokens <= _EXACT else -(-num_tokens // _ROUNDED) * _ROUNDED


class HitRates:
    """How often the next token was the expected one, by how many tokens before it matched."""

    def __init__(self) -> None:
        self._sums = [(0.5 + 0.45 * level / (_NUM_LEVELS - 1), 1.0) for level in range(_NUM_LEVELS)]

    def learn(self, match: int, *, hit: bool) -> None:
        level = _LEVELS[match]
        hits, weight = self._sums[level]
        self._sums[level] = _KEPT * hits + hit, _KEPT * weight + 1.0

    def rate(self, match: int, own: "HitCounts") -> float:
        """Return the likelihood for a request with these counts of its own."""
        level = _LEVELS[match]
        hits, weight = self._sums[level]
        own_hits, own_weight = own[level]
        return (own_hits + _OWN_WEIGHT * hits / weight) / (own_weight + _OWN_WEIGHT)


_LEVELS = [min(int.bit_length(match), 6) for match in range(_LONGEST + 1)]  # 0, 1, 2-3, 4-7, 8-15, 16-31, 32
_NUM_LEVELS = max(_LEVELS) + 1
HitCounts = list[tuple[float, float]]


class OwnText:
    """An index of a request's prompt and answer, and the place from which the newest tokens seem to be copied. Adding a
    token takes constant time."""

    __slots__ = ("_at", "_ends", "_lost", "_lost_until", "_rates", "_tokens", "hits", "match")

    def __init__(self, rates: HitRates) -> None:
        self._rates = rates
        self._tokens: array[int] = array("I")
        self._ends: dict[bytes, int] = {}  # the position after the last occurrence of a few tokens, by those tokens
        self._at: int | None = None  # the position of the token that is expected next
        self._lost: int | None = None  # where the last copy deviated
        self._lost_until = 0  # the length up to which the copy may go on near that place
        self.match = 0  # tokens before `_at` that equal the newest ones
        self.hits: HitCounts = [(0.0, 0.0)] * _NUM_LEVELS

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Tokens[int], *, is_prompt: bool = False) -> None:
        """Add the tokens. Those of an answer show how good the expectations are."""
        known, ends = self._tokens, self._ends
        if is_prompt:
            start = max(_SHORTEST, len(known))
            known.extend(tokens)
            packed, size = known.tobytes(), known.itemsize
            for end in range(start, len(known)):
                ends[packed[(end - _SHORTEST) * size : end * size]] = end
            self._at, self._lost, self.match = None, None, 0
            self._find_place()
            return
        for token in tokens:
            at = self._at
            if at is not None:
                is_hit = known[at] == token
                self._rates.learn(self.match, hit=is_hit)
                hits, weight = self.hits[level := _LEVELS[self.match]]
                self.hits[level] = _KEPT * hits + is_hit, _KEPT * weight + 1.0
                if is_hit:
                    self._at, self.match = at + 1, min(self.match + 1, _LONGEST)
                else:
                    self._at, self._lost, self.match = None, at, 0
                    self._lost_until = len(known) + _NEAR
            if len(known) >= _SHORTEST:
                ends[_key(known, len(known))] = len(known)
            known.append(token)
            if self._at is None:
                self._find_place()

    def expected(self, most: int) -> tuple[int, ...]:
        """Return up to `most` tokens that are expected next. A copy that reaches its own end repeats itself."""
        known, at = self._tokens, self._at
        if at is None:
            return ()
        copied = tuple(known[at : at + most])
        while len(copied) < most:
            copied += copied[: most - len(copied)]
        return copied

    def rate(self, num_more: int) -> float:
        """Return the likelihood of a token that is expected after `num_more` others, if all of those are right."""
        return self._rates.rate(min(self.match + num_more, _LONGEST), self.hits)

    def _find_place(self) -> None:
        known = self._tokens
        size, lost = len(known), self._lost
        if size < _SHORTEST:
            return
        found = self._ends.get(_key(known, size))
        if lost is not None and size <= self._lost_until:
            # An edited copy goes on near the place where it deviated, rather than anywhere else.
            newest = known[size - 2 :]
            for end in range(lost + 1, min(lost + _NEAR, size - 1)):
                if known[end - 2 : end] == newest:
                    found = end
                    break
        if found is None or found >= size:
            return
        match = 0
        while match < min(_LONGEST, found) and known[found - 1 - match] == known[size - 1 - match]:
            match += 1
        if match >= 2:
            self._at, self.match, self._lost = found, match, None


def _key(tokens: "array[int]", end: int) -> bytes:
    """Return the bytes of the last tokens before `end`. Python hashes bytes with a secret, so that no caller can choose
    tokens whose hashes are equal."""
    return tokens[end - _SHORTEST : end].tobytes()


class OwnTextProposer:
    """Proposes the continuations of the texts that sequences copy. Of all their next tokens, a step checks the
    likeliest ones: as many as let it compute most tokens in a second, by their likelihoods and the measured time of
    steps."""

    def __init__(self) -> None:
        self._rates = HitRates()
        self._cost = StepCost()

    def observe(self, num_tokens: int, seconds: float) -> None:
        self._cost.learn(num_tokens, seconds)

    def propose(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> dict[Sequence, tuple[int, ...]]:
        texts = {}
        for seq in limits:
            text = self._read(seq)
            if text.match:
                texts[seq] = text
        times = self._cost.times(num_rows, num_rows + most) if texts else []
        if not times:
            return {}  # nothing is copied, or no step without drafts was measured yet
        num_tried = max(_FEW, num_rows // 2)  # beyond what was measured
        likeliest = self._likeliest(texts, limits, min(most, len(times) - 1 + num_tried))
        num_chosen = _best_number([likelihood for likelihood, _ in likeliest], times, num_rows)
        windows: dict[Sequence, int] = {}
        for _, seq in likeliest[:num_chosen]:
            windows[seq] = windows.get(seq, 0) + 1
        return {seq: texts[seq].expected(window) for seq, window in windows.items()}

    def _read(self, seq: Sequence) -> OwnText:
        """Return the sequence's text, with its newest tokens. A long prompt is read in parts, one for each step."""
        text, known = seq.own_text, seq.chain.view()
        if text is None:
            text = seq.own_text = OwnText(self._rates)
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
        texts: Mapping[Sequence, OwnText], limits: Mapping[Sequence, int], most: int
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
    best, chosen, kept = _LEAST_GAIN * num_rows / times[0], 0, float(num_rows)
    for number, (likelihood, time) in enumerate(zip(likelihoods, times[1:], strict=False), 1):
        kept += likelihood
        if kept > best * time:
            best, chosen = kept / time, number
    if chosen < len(times) - 1:
        return chosen
    return chosen + sum(likelihood >= _LIKELY for likelihood in likelihoods[chosen:])
