"""Texts from which the newest tokens of a request seem to be copied: the request's own, and other answers of its lane
and tenant. What followed there probably follows again."""

from abc import ABC, abstractmethod
from array import array
from collections import OrderedDict
from collections.abc import Sequence as Tokens

from specialist.scheduling.sequence import DraftSource

_SHORTEST = 3  # tokens that must occur again before a copy is expected
_SHORTEST_OF_LANE = 4  # in another answer
_LONGEST = 32  # a longer match is not measured
_NEAR = 16  # tokens after a lost place in which a match of two tokens is enough: a copy that was edited goes on there
_KEPT = 0.98  # the weight that a prediction keeps when the next one has been checked
_OWN_WEIGHT = 4.0  # predictions of other requests count as so many of the request's own


class HitRates:
    """How often the next token was the expected one, by how many tokens before it matched."""

    MOST = _LONGEST

    def __init__(self) -> None:
        self._sums = [(0.5 + 0.45 * level / (_NUM_LEVELS - 1), 1.0) for level in range(_NUM_LEVELS)]

    def learn(self, match: int, *, hit: bool) -> None:
        level = _LEVELS[match]
        hits, weight = self._sums[level]
        self._sums[level] = _KEPT * hits + hit, _KEPT * weight + 1.0

    def rate(self, match: int, own: "OwnHits") -> float:
        """Return the likelihood for a request with these counts of its own."""
        level = _LEVELS[match]
        hits, weight = self._sums[level]
        own_hits, own_weight = own.sums[level]
        return (own_hits + _OWN_WEIGHT * hits / weight) / (own_weight + _OWN_WEIGHT)


_LEVELS = [min(int.bit_length(match), 6) for match in range(_LONGEST + 1)]  # 0, 1, 2-3, 4-7, 8-15, 16-31, 32
_NUM_LEVELS = max(_LEVELS) + 1


class OwnHits:
    """The same, of one request."""

    __slots__ = ("sums",)

    def __init__(self) -> None:
        self.sums = [(0.0, 0.0)] * _NUM_LEVELS

    def learn(self, match: int, *, hit: bool) -> None:
        hits, weight = self.sums[level := _LEVELS[match]]
        self.sums[level] = _KEPT * hits + hit, _KEPT * weight + 1.0


class CopiedText(ABC):
    """The place from which the newest tokens of a request seem to be copied."""

    __slots__ = ("_at", "_lost", "_lost_until", "_rates", "_text", "hits", "match")
    source: DraftSource

    def __init__(self, rates: HitRates) -> None:
        self._rates = rates
        self._text: array[int] = array("I")  # it holds the place
        self._at: int | None = None  # the position of the token that is expected next
        self._lost: int | None = None  # where the last copy deviated
        self._lost_until = 0  # the length up to which the copy may go on near that place
        self.match = 0  # tokens before `_at` that equal the newest ones
        self.hits = OwnHits()

    def rate(self, num_more: int) -> float:
        """Return the likelihood of a token that is expected after `num_more` others, if all of those are right."""
        return self._rates.rate(min(self.match + num_more, _LONGEST), self.hits)

    @abstractmethod
    def expected(self, most: int) -> tuple[int, ...]:
        """Return up to `most` tokens that are expected next."""

    def _check(self, token: int, num_known: int) -> None:
        """Compare a new token with the expected one. `num_known` tokens were known before it."""
        at = self._at
        if at is None:
            return
        is_hit = self._text[at] == token
        self._rates.learn(self.match, hit=is_hit)
        self.hits.learn(self.match, hit=is_hit)
        if is_hit:
            self._at, self.match = at + 1, min(self.match + 1, _LONGEST)
        else:
            self._at, self._lost, self.match = None, at, 0
            self._lost_until = num_known + _NEAR

    def _near_lost(self, newest: "array[int]", num_known: int) -> int | None:
        """Return where an edited copy goes on: near the place where it deviated, rather than anywhere else."""
        lost, text = self._lost, self._text
        if lost is None or num_known > self._lost_until:
            return None
        for end in range(lost + 1, min(lost + _NEAR, len(text))):
            if text[end - 2 : end] == newest:
                return end
        return None

    def _settle_at(self, end: int, known: Tokens[int]) -> None:
        """Expect the token at `end` next, unless fewer than two tokens before it equal the newest ones."""
        text, size, match = self._text, len(known), 0
        while match < min(_LONGEST, end, size) and text[end - 1 - match] == known[size - 1 - match]:
            match += 1
        if match >= 2:
            self._at, self.match, self._lost = end, match, None


class OwnText(CopiedText):
    """An index of a request's prompt and answer. Adding a token takes constant time."""

    __slots__ = ("_ends",)
    source: DraftSource = "own_text"

    def __init__(self, rates: HitRates) -> None:
        super().__init__(rates)
        self._ends: dict[bytes, int] = {}  # the position after the last occurrence of a few tokens, by those tokens

    def __len__(self) -> int:
        return len(self._text)

    def extend(self, tokens: Tokens[int], *, is_prompt: bool = False) -> None:
        """Add the tokens. Those of an answer show how good the expectations are."""
        known, ends = self._text, self._ends
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
            self._check(token, len(known))
            if len(known) >= _SHORTEST:
                ends[_key(known, _SHORTEST)] = len(known)
            known.append(token)
            if self._at is None:
                self._find_place()

    def expected(self, most: int) -> tuple[int, ...]:
        """Return up to `most` tokens that are expected next. A copy that reaches its own end repeats itself."""
        known, at = self._text, self._at
        if at is None:
            return ()
        copied = tuple(known[at : at + most])
        while len(copied) < most:
            copied += copied[: most - len(copied)]
        return copied

    def _find_place(self) -> None:
        known = self._text
        size = len(known)
        if size < _SHORTEST:
            return
        found = self._near_lost(known[size - 2 :], size) or self._ends.get(_key(known, _SHORTEST))
        if found is not None and found < size:
            self._settle_at(found, known)


def _key(tokens: "array[int]", count: int) -> bytes:
    """Return the bytes of the last `count` tokens. Python hashes bytes with a secret, so that no caller can choose
    tokens whose hashes are equal."""
    return tokens[len(tokens) - count :].tobytes()


class _Answer:
    """Tokens of an answer that ended, after the last few of its prompt."""

    __slots__ = ("number", "root", "tokens")

    def __init__(self, number: int, root: bytes, tokens: "array[int]") -> None:
        self.number = number
        self.root = root
        self.tokens = tokens


class LaneTexts:
    """Answers that ended, by the root of their chains: only a request of the same lane, adapter stack and tenant salt
    finds one, as with cached blocks. Memory is bounded: the least recently used answers are dropped first. Adding,
    finding and dropping a token takes constant time."""

    MOST_BYTES = 32 << 20
    TOKEN_BYTES = 320  # of an answer and its part of the index
    MOST_TOKENS = 4096  # of one answer; what follows them is not kept

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_tokens = most_bytes // self.TOKEN_BYTES
        self._answers: OrderedDict[int, _Answer] = OrderedDict()  # the least recently used first
        self._ends: dict[bytes, dict[bytes, tuple[_Answer, int]]] = {}
        """For each root: by a few tokens, the last answer that has them, and the position after them."""
        self._peaks: dict[bytes, int] = {}  # the most entries of each root since its table was made
        self._num_tokens = 0
        self._num_received = 0

    @property
    def num_bytes(self) -> int:
        return self._num_tokens * self.TOKEN_BYTES

    def __len__(self) -> int:
        return len(self._answers)

    def learn(self, root: bytes, tokens: Tokens[int], num_prompt: int) -> None:
        """Add the answer of a request with these tokens, of which `num_prompt` are its prompt's."""
        first = max(0, num_prompt - _LONGEST)
        kept = array("I", tokens[first : min(num_prompt + self.MOST_TOKENS, first + self._most_tokens)])
        if len(tokens) <= num_prompt or len(kept) <= _SHORTEST_OF_LANE:
            return
        self._num_received += 1
        answer = _Answer(self._num_received, root, kept)
        ends, packed, size = self._ends.setdefault(root, {}), kept.tobytes(), kept.itemsize
        for end in range(_SHORTEST_OF_LANE, len(kept)):
            ends[packed[(end - _SHORTEST_OF_LANE) * size : end * size]] = answer, end
        self._peaks[root] = max(self._peaks.get(root, 0), len(ends))
        self._answers[answer.number] = answer
        self._num_tokens += len(kept)
        while self._num_tokens > self._most_tokens:
            self._drop(self._answers.popitem(last=False)[1])

    def find(self, root: bytes, newest: "array[int]") -> tuple["array[int]", int] | None:
        """Return the tokens of an answer that has the `newest` ones, and the position after them."""
        found = self._ends.get(root, {}).get(newest.tobytes())
        if found is None:
            return None
        answer, end = found
        self._answers.move_to_end(answer.number)
        return answer.tokens, end

    def _drop(self, answer: _Answer) -> None:
        self._num_tokens -= len(answer.tokens)
        ends, packed, size = self._ends[answer.root], answer.tokens.tobytes(), answer.tokens.itemsize
        for end in range(_SHORTEST_OF_LANE, len(answer.tokens)):
            key = packed[(end - _SHORTEST_OF_LANE) * size : end * size]
            if key in ends and ends[key][0] is answer:
                del ends[key]
        if not ends:
            del self._ends[answer.root], self._peaks[answer.root]
        elif 4 * len(ends) < self._peaks[answer.root]:  # a dict never shrinks
            self._ends[answer.root], self._peaks[answer.root] = dict(ends), len(ends)


class LaneText(CopiedText):
    """The place in another answer of the lane from which a request's answer seems to be copied."""

    __slots__ = ("_num_read", "_root", "_texts")
    source: DraftSource = "lane"

    def __init__(self, rates: HitRates, texts: LaneTexts, root: bytes, num_prompt: int) -> None:
        super().__init__(rates)
        self._texts = texts
        self._root = root
        self._num_read = num_prompt  # how many of the request's tokens were compared

    def read(self, known: Tokens[int]) -> None:
        """Compare the tokens that are new among those of the request, and find the place of the newest ones."""
        for position in range(self._num_read, len(known)):
            self._check(known[position], position)
            if self._at == len(self._text):  # the other answer ended here
                self._at, self.match = None, 0
        self._num_read = len(known)
        if self._at is None and len(known) >= _SHORTEST_OF_LANE:
            self._find_place(array("I", known[len(known) - _SHORTEST_OF_LANE :]), known)

    def expected(self, most: int) -> tuple[int, ...]:
        at = self._at
        return () if at is None else tuple(self._text[at : at + most])

    def _find_place(self, newest: "array[int]", known: Tokens[int]) -> None:
        near = self._near_lost(newest[len(newest) - 2 :], len(known))
        if near is not None:
            self._settle_at(near, known)
            return
        found = self._texts.find(self._root, newest)
        if found is not None:
            self._text, end = found
            self._settle_at(end, known)
