"""How much two texts have in common, as a share of both."""

from collections import Counter
from collections.abc import Hashable, Iterable
from itertools import pairwise

_END = 24 << 10
"""Characters that are looked at from the beginning of a text, and as many from its end."""
_MARKS = "!\"#$%&'()*+,-./:;<=>?@[\\]^`{|}~"
"""Tokens by themselves; all else between them and white space is a word."""


def similarity(a: str, b: str) -> float:
    """1 for texts of the same words and marks in the same order, whatever their case and spacing; 0 for those that
    share none. Between them: Dice's coefficient over tokens and pairs of neighbours together, so that a changed name
    costs its places and their neighbourhoods, and a changed order the neighbourhoods alone. Symmetric, and linear in
    what is looked at, which is bounded."""
    mine, yours = _tokens(a), _tokens(b)
    if mine == yours:
        return 1.0
    common = _common(mine, yours) + _common(pairwise(mine), pairwise(yours))
    return 2 * common / (_num_pieces(mine) + _num_pieces(yours))


def _tokens(text: str) -> list[str]:
    if len(text) > 2 * _END:
        text = f"{text[:_END]} {text[-_END:]}"
    text = text.lower()
    for mark in _MARKS:  # several times as fast as a regular expression
        text = text.replace(mark, f" {mark} ")
    return text.split()


def _common(mine: Iterable[Hashable], yours: Iterable[Hashable]) -> int:
    return (Counter(mine) & Counter(yours)).total()


def _num_pieces(tokens: list[str]) -> int:
    return max(0, 2 * len(tokens) - 1)
