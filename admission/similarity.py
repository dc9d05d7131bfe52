"""How much two texts have in common."""

from collections import Counter
from collections.abc import Hashable, Iterable
from itertools import pairwise

_END = 24 << 10  # characters compared at the beginning of a text, and the same number at its end
_MARKS = "!\"#$%&'()*+,-./:;<=>?@[\\]^`{|}~"
"""Each mark is a separate token; words are separated by marks and white space."""


def similarity(a: str, b: str) -> float:
    """Return a number from 0 (no token in common) to 1 (the same tokens in the same order), ignoring case and spacing.
    It is Dice's coefficient over tokens and pairs of neighbouring tokens: a changed token affects both, a changed order
    only the pairs. The cost is linear in the number of compared characters, which is limited."""
    mine, yours = _tokens(a), _tokens(b)
    if mine == yours:
        return 1.0
    common = _common(mine, yours) + _common(pairwise(mine), pairwise(yours))
    return 2 * common / (_num_pieces(mine) + _num_pieces(yours))


def _tokens(text: str) -> list[str]:
    if len(text) > 2 * _END:
        text = f"{text[:_END]} {text[-_END:]}"
    text = text.lower()
    for mark in _MARKS:  # replacing marks is several times as fast as a regular expression
        text = text.replace(mark, f" {mark} ")
    return text.split()


def _common(mine: Iterable[Hashable], yours: Iterable[Hashable]) -> int:
    return (Counter(mine) & Counter(yours)).total()


def _num_pieces(tokens: list[str]) -> int:
    return max(0, 2 * len(tokens) - 1)
