"""Shares of a GPU's memory: given ones stay, the others split the rest, and their sum is checked."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.cli import main
from octet.config.card_shares import USUAL_SHARE, card_of, share_problems, shares_by_card, split_cards
from octet.config.ensemble import SpecialistConfig
from octet.config.loader import parse_ensemble


@st.composite
def some_specialists(draw: Callable[[Any], Any]) -> list[SpecialistConfig]:
    devices = st.sampled_from(["cpu", "cuda", "cuda:0", "cuda:1"])
    share = st.none() | st.floats(0.01, 0.4)
    each = st.builds(SpecialistConfig, name=st.just(""), device=devices, replicas=st.integers(1, 3))
    found = draw(st.lists(st.tuples(each, share), min_size=1, max_size=6))
    return [
        SpecialistConfig(
            name=f"s{index}",
            device=one.device,
            replicas=one.replicas,
            memory_fraction=None if one.device == "cpu" else part,
        )
        for index, (one, part) in enumerate(found)
    ]


@given(some_specialists(), st.sets(st.integers(0, 5)))
def test_the_rest_of_a_card_is_split_equally_and_given_shares_stay(
    specialists: list[SpecialistConfig], sized: set[int]
) -> None:
    names = frozenset(f"s{index}" for index in sized)
    split = split_cards(specialists, names)
    given_shares = shares_by_card(specialists)
    for before, after in zip(specialists, split, strict=True):
        card = card_of(before)
        if card is None or before.memory_fraction is not None or before.name in names:
            assert after == before
        else:
            left = max(0.0, USUAL_SHARE - given_shares[card])
            equals = {each.memory_fraction for each, old in zip(split, specialists, strict=True)
                      if card_of(old) == card and old.memory_fraction is None and old.name not in names}  # fmt: skip
            assert equals == {after.memory_fraction}
            assert after.memory_fraction is not None
            assert after.memory_fraction <= left
    problems = dict(share_problems(split))
    for card, total in shares_by_card(split).items():
        mine = [each.name for each in split if card_of(each) == card]
        missing = any(each.memory_fraction == 0 for each in split if card_of(each) == card)
        assert any(name in problems for name in mine) == (missing or total > 1 + 1e-9)
        if card not in given_shares or given_shares[card] < USUAL_SHARE:
            assert total <= max(USUAL_SHARE, given_shares[card]) + 1e-9


def fractions(text: str) -> dict[str, float | None]:
    return {each.name: each.memory_fraction for each in parse_ensemble(text, None).specialists}


def test_a_specialists_own_keys_precede_those_at_the_top() -> None:
    own = "specialists:\n  a: {kv_memory: 2g}\n  b: {memory_fraction: 0.25}\n  c: {}\n  d: {device: cpu}\n"
    assert fractions("device: cuda\n" + own) == {"a": None, "b": 0.25, "c": pytest.approx(0.65), "d": None}
    assert fractions("device: cuda\nmemory_fraction: 0.2\n" + own) == {"a": None, "b": 0.25, "c": 0.2, "d": None}
    assert fractions("device: cuda\nkv_memory: 1g\n" + own) == {"a": None, "b": 0.25, "c": None, "d": None}
    elsewhere = "device: cuda\nspecialists:\n  a: {addresses: ['a:1']}\n  b: {engine: sim}\n  c: {replicas: 3}\n"
    assert fractions(elsewhere) == {"a": None, "b": None, "c": pytest.approx(0.3)}


def test_check_prints_the_sum_of_each_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cards.yaml"
    path.write_text(
        "device: cuda\ndtype: bfloat16\ndefault: a\n"
        "specialists:\n  a: {memory_fraction: 0.2, replicas: 2}\n  b: {}\n  c: {device: 'cuda:1', kv_memory: 4g}\n"
    )
    assert main(["check", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["cards"] == {"cuda:0": pytest.approx(0.9), "cuda:1": 0.0}
    assert shown["kv_bytes"] == 4 << 30
    assert main(["check", str(path)]) == 0
    table = capsys.readouterr().out
    assert "cuda:0: a 2 x 0.2 + b 1 x 0.5; 0.1 is left" in table
    assert "cuda:1: c 1 x weights and pool; 1 is left" in table
