"""How the next token is drawn."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Sampling:
    """Checked where a request is received; here every value is in range.

    Order: structure, logit bias, penalties, minimum length, temperature, top-k, typical, top-p, min-p.
    """

    temperature: float = 0.0
    """0 takes the most likely token."""
    top_k: int = 0
    """0 for all."""
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of every token seen, prompt included."""
    presence_penalty: float = 0.0
    """Subtracted for every token generated at least once."""
    frequency_penalty: float = 0.0
    """Subtracted for every time a token was generated."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    """Before so many are generated no stop token can be drawn."""
    num_logprobs: int | None = None
    """None for no log probabilities, 0 for the chosen token's alone, n for the n most likely as well."""


GREEDY = Sampling()


class TokenLogprobs(NamedTuple):
    """Of the model's own distribution, before temperature and filters."""

    chosen: float
    top: tuple[tuple[int, float], ...]
    """(token, log probability), most likely first."""
