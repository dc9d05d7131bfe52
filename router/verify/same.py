"""Lanes that say the same to different questions, although the specialist used to tell such questions apart.

Labels, numbers and one sentence for all harmless inputs are healthy answers, too. So a text is only compared with what
the trusted lanes of the specialist said before, to questions of the same kind if those of now begin or end alike. What
was usual, or what is new because its questions are new, shows nothing.
"""

import re
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST_SAME = 10  # different questions that got the same text
_NEWEST = 20  # answers of a lane
_NEWEST_SHORT = 12  # the same for short texts, of which more must be the same
_PROSE_WORDS, _PROSE = 8, 40  # words and characters; a shorter answer may be a label
_MOST_VARIED = 3  # of the newest answers may be the same short text
_MOST_BEFORE = 200  # earlier answers of a specialist
_FEWEST_BEFORE = 20
_USUAL_SHARE = 0.05  # of the earlier answers
_KIND = 24  # characters; questions of one kind begin or end with the same
_KIND_SHARE = 0.8
_WORD = re.compile(r"\w+")
_LABELS = frozenset(
    [
        "yes",
        "no",
        "true",
        "false",
        "none",
        "null",
        "ok",
        "n",
        "a",
        "na",
        "unknown",
        "other",
        "neutral",
        "positive",
        "negative",
        "pass",
        "fail",
    ]
)


@dataclass(frozen=True)
class SaidAnswer:
    """What is kept of an answer: hashes, no text."""

    question: int
    head: int
    tail: int
    text: int
    is_prose: bool
    is_data: bool  # JSON, a number, or words that are labels or of the question

    @classmethod
    def read(cls, question: str, answer: str) -> "SaidAnswer":
        words = answer.casefold().split()
        is_prose = len(words) >= _PROSE_WORDS and len(answer) >= _PROSE
        own = [each for each in _WORD.findall(answer.casefold()) if not each.isdecimal()]
        is_label = not is_prose and _LABELS.union(_WORD.findall(question.casefold())).issuperset(own)
        is_data = answer.lstrip()[:1] in ("{", "[") or (is_label and bool(_WORD.search(answer)))
        ends = question[:_KIND], question[-_KIND:]
        return cls(hash(question), hash(ends[0]), hash(ends[1]), hash(" ".join(words)), is_prose, is_data)


class SameAnswers:
    """The newest answers of each lane, and the earlier ones of each specialist's trusted lanes."""

    def __init__(self) -> None:
        self._newest = defaultdict[str, deque[SaidAnswer]](lambda: deque(maxlen=_NEWEST))
        self._before = defaultdict[str, deque[SaidAnswer]](lambda: deque(maxlen=_MOST_BEFORE))

    def add(self, specialist: str, lane_id: str, said: SaidAnswer, *, is_trusted: bool) -> bool:
        """Add an answer of a lane. Return whether the lane says this text to different questions although it was not
        usual."""
        newest, before = self._newest[lane_id], self._before[specialist]
        if is_trusted and len(newest) == _NEWEST and not self._is_stuck(before, newest, newest[0]):
            before.append(newest[0])
        newest.append(said)
        return self._is_stuck(before, newest, said)

    def is_varied(self, lane_id: str, said: SaidAnswer) -> bool:
        """Whether few of the lane's newest answers are this text, or it is data."""
        same = {each.question for each in self._newest[lane_id] if each.text == said.text}
        return said.is_data or len(same) <= _MOST_VARIED

    def _is_stuck(self, before: Sequence[SaidAnswer], newest: Sequence[SaidAnswer], said: SaidAnswer) -> bool:
        if said.is_data:
            return False
        recent = list(newest)[-(_NEWEST if said.is_prose else _NEWEST_SHORT) :]
        same = [each for each in recent if each.text == said.text]
        if len({each.question for each in same}) < FEWEST_SAME:
            return False
        alike = _alike(before, same)
        times = sum(each.text == said.text for each in alike)
        return len(alike) >= _FEWEST_BEFORE and times < _USUAL_SHARE * len(alike)


def _alike(before: Sequence[SaidAnswer], same: Sequence[SaidAnswer]) -> Sequence[SaidAnswer]:
    """Return the earlier answers to questions that begin or end as most of these do; all if these differ."""
    for name in ("head", "tail"):
        ((end, times),) = Counter(getattr(each, name) for each in same).most_common(1)
        if times >= _KIND_SHARE * len(same):
            return [each for each in before if getattr(each, name) == end]
    return before
