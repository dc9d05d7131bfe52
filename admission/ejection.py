"""Which replicas of one specialist are left out of the choice. Never all of them."""

from collections.abc import Callable, Sequence
from typing import TypeVar

_ItemT = TypeVar("_ItemT")


def standing(
    items: Sequence[_ItemT], *, is_closed: Callable[[_ItemT], bool], is_broken: Callable[[_ItemT], bool]
) -> list[_ItemT]:
    """Those to choose from: the sound ones. Where there are none the broken ones, which may be sound again, and where
    there are none of those either the closed ones, which will most likely refuse. Empty only when `items` is."""
    open_ones = [item for item in items if not is_closed(item)]
    sound = [item for item in open_ones if not is_broken(item)]
    return sound or open_ones or list(items)
