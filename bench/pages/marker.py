"""A marker in a page: what is to stand below it."""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_BLOCK = re.compile(r"<!-- (?P<words>[^\n]+?) -->\n(?P<text>.*?)<!-- end -->", re.DOTALL)


class MarkerRefused(ValueError):
    """A marker that nobody can fill."""


@dataclass(frozen=True, slots=True)
class Marker:
    kind: str
    name: str
    """Of the result; empty where the kind needs none."""
    options: Mapping[str, str]


def filled(page: str, fill: Callable[[Marker], str]) -> str:
    """The page with everything between its markers written anew."""
    return _BLOCK.sub(lambda block: f"<!-- {block['words']} -->\n{fill(_marker(block['words']))}\n<!-- end -->", page)


def _marker(words: str) -> Marker:
    try:
        kind, *rest = shlex.split(words)
    except ValueError as error:
        raise MarkerRefused(f"<!-- {words} -->: {error}") from error
    names = [word for word in rest if "=" not in word]
    if len(names) > 1:
        raise MarkerRefused(f"<!-- {words} -->: one name, then NAME=VALUE")
    options = dict(word.split("=", 1) for word in rest if "=" in word)
    return Marker(kind, names[0] if names else "", options)
