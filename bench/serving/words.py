"""Prompts that are so many tokens long, for whoever counts them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from bench.serving.asks import Ask
from bench.trace import TRACE_BLOCK_SIZE

# Three letters each: a token for most vocabularies, and with the space four bytes.
_WORDS = tuple(
    re.findall(
        "...",
        "theandforyounotarebutallcanhadherwasoneouroutdaygethashimhishowmannewnowoldseetwo"
        "waywhoboydiditsletputsayshetoouseairarmbedbigboxcarcutdogdryeatendeyefarfewflyfun",
    )
)


@dataclass(frozen=True, slots=True)
class TokenCount:
    """How an endpoint counts: a line through two prompts it was asked about."""

    a_word: float = 1.0
    around: float = 0.0
    """What its template adds."""

    def words(self, tokens: float) -> int:
        return max(1, round((tokens - self.around) / self.a_word))


def fit_count(short: tuple[int, int], long: tuple[int, int]) -> TokenCount:
    """From two pairs of words and tokens; as many tokens as words where they make no sense."""
    slope = (long[1] - short[1]) / (long[0] - short[0])
    return TokenCount(slope, short[1] - slope * short[0]) if slope > 0 else TokenCount()


def prompt_of(ask: Ask, count: TokenCount) -> str:
    """Asks share a beginning exactly where their trace says that they do."""
    words = count.words(ask.prompt_tokens)
    if not ask.blocks:
        return " ".join(_drawn(f"{ask.seed}, {ask.number}", words))
    a_block = max(1, round(TRACE_BLOCK_SIZE / count.a_word))
    text = [word for block in ask.blocks for word in _drawn(f"block {block}", a_block)]
    return " ".join(text[:words])


def words_of(number: int, seed: str) -> str:
    return " ".join(_drawn(seed, number))


def _drawn(seed: str, number: int) -> Iterator[str]:
    return iter(Random(seed).choices(_WORDS, k=number))
