"""A step of an engine as far as its price depends on it."""

from typing import NamedTuple


class Shape(NamedTuple):
    prefill: bool
    tokens: int
    """Computed in the step."""
    pairs: int
    """Each of them with every token it looks back at, itself included."""
    switched: bool = False
    """Whether the adapters are not those of the step before."""
