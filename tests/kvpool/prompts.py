"""Random sequences to admit, which often share a prefix."""

from dataclasses import dataclass

from hypothesis import strategies as st

from octet.identity import Lane

BARE = Lane("writer", "0" * 64)
ADAPTED = Lane("writer", "0" * 64, ("a" * 64,))
OWNERS = [(BARE, b""), (ADAPTED, b""), (BARE, b"tenant")]
"""Lane and tenant salt of each owner. No two owners may share a block."""

few_tokens = st.lists(st.sampled_from([0, 1, 2**32 - 1]), max_size=4)


@dataclass(frozen=True)
class Prompt:
    owner: int
    tokens: tuple[int, ...]
    num_tokens: int
    headroom: int = 0
    depths: frozenset[int] | None = None
    """Permitted numbers of hit blocks; None if the sequence can resume anywhere."""


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    """Draw a prompt: one to ten zeros and a short random tail, so that prompts share prefixes. Most prompts belong to
    owner 0, because only prompts of the same owner can share blocks."""
    tokens = (0,) * draw(st.integers(1, 10)) + tuple(draw(few_tokens))
    return Prompt(
        owner=draw(st.sampled_from([0, 0, 0, 1, 2])),
        tokens=tokens,
        num_tokens=max(0, len(tokens) + draw(st.sampled_from([0, 0, 0, 1, 3, -2, -6]))),
        headroom=draw(st.sampled_from([0, 0, 0, 1, 2])),
        depths=draw(st.none() | st.none() | st.frozensets(st.integers(1, 6))),
    )
