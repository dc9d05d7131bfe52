"""A marker in a page: what is to stand below it."""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

KINDS = ("figures", "origin", "notes", "faults")
_END = "<!-- end -->"
_BLOCK = re.compile(rf"<!-- (?P<words>(?:{'|'.join(KINDS)})\b[^\n]*?) -->\n(?P<text>.*?){_END}", re.DOTALL)


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
    if len(_BLOCK.findall(page)) != page.count(_END):
        raise MarkerRefused(f"an end without a beginning: a marker is {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    return _BLOCK.sub(lambda block: f"<!-- {block['words']} -->\n{fill(_marker(block['words']))}\n{_END}", page)


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
