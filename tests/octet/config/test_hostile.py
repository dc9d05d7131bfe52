"""Every hostile file is refused in bounded time."""

import time

import pytest

from octet.config.loader import parse_ensemble
from octet.config.yaml_tree import MAX_BYTES, MAX_NODES, ConfigInvalid

SECONDS = 10.0
"""Limit on CPU seconds, far above what a bounded reader needs."""


def filled(piece: str, before: str = "") -> str:
    return before + piece * ((MAX_BYTES - len(before)) // len(piece.encode()))


def bomb(levels: int, width: int) -> str:
    lines = ["a0: &a0 x"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]" for level in range(1, levels)]
    return "\n".join(lines)


HOSTILE = {
    "open lists": filled("["),
    "open tables": filled("{"),
    "open lists in lines": filled("[\n"),
    "items in items": filled("- "),
    "keys in keys": filled("? "),
    "one key again and again": filled("a:\n"),
    "unknown keys": "".join(f"k{index}: 1\n" for index in range(MAX_NODES // 2 - 10)),
    "long unknown keys": "".join(f"{'k' * 900}{index}: 1\n" for index in range(1100)),
    "unknown names": "specialists: {"
    + ", ".join(f"{'s' * 40}{index}: " for index in range(64))
    + "}\nintents:\n"
    + "".join(f"  i{index}: {'s' * 39}x{index}\n" for index in range(256)),
    "many items": filled("    - x\n", "specialists:\n  a:\n    examples:\n"),
    "a folded text": filled(" x\n\n", "a: >\n"),
    "aliases of aliases": bomb(levels=30, width=9),
    "a node within itself": "a: &a [*a]",
    "tags": filled("!"),
    "a version beyond all numbers": f"%YAML {'1' * 5000}.1\n---\na: b\n",
    "an escape beyond all characters": '"\\UFFFFFFFF"',
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_file_is_refused_in_bounded_time(text: str) -> None:
    started = time.process_time()
    with pytest.raises(ConfigInvalid) as refused:
        parse_ensemble(text, None)
    assert time.process_time() - started < SECONDS
    assert all(len(problem.message) < 1100 for problem in refused.value.problems)


def test_aliases_count_with_their_expansion() -> None:
    with pytest.raises(ConfigInvalid, match="more than 50,000 values, counting expanded aliases"):
        parse_ensemble(bomb(levels=10, width=9), None)
