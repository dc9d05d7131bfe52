"""Every parser accepts an input or refuses it with a typed error, quickly and with little memory."""

from mmap import mmap
from time import process_time

import pytest
from hypothesis import settings

from tests.fuzz.all import PARSERS
from tests.fuzz.law import LawBroken, check, judge
from tests.fuzz.mutate import mutated
from tests.fuzz.parser import Parser

NUM_INPUTS = 5 * settings().max_examples
"""Inputs per parser: a hundred, or more in `make proofs`; expensive parsers get fewer. `make fuzz-parsers` tries
further seeds."""


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_invalid_inputs_are_refused_with_a_typed_error(parser: Parser) -> None:
    check(parser, range(max(4, round(NUM_INPUTS * parser.share))))


def test_every_parser_has_a_name_of_its_own() -> None:
    assert len({parser.name for parser in PARSERS}) == len(PARSERS)


def test_a_seed_gives_the_same_inputs() -> None:
    for parser in PARSERS[:5]:
        assert [mutated(parser, seed) for seed in range(50)] == [mutated(parser, seed) for seed in range(50)]
        assert len({mutated(parser, seed) for seed in range(50)}) > 25


def _planted(parse: object, **others: object) -> Parser:
    return Parser("planted", parse, (ValueError,), (b"12",), **others)  # type: ignore[arg-type]


def test_an_undeclared_exception_breaks_the_law() -> None:
    with pytest.raises(LawBroken, match=r"planted, seed .*ZeroDivisionError"):
        check(_planted(lambda raw: 1 / (len(raw) - 1) if len(raw) != 1 else 1 / 0), range(200))


def test_a_parser_that_never_ends_breaks_the_law() -> None:
    def ends_not(raw: bytes) -> None:
        while raw != b"12":
            pass

    with pytest.raises(LawBroken, match="hangs"):
        judge(_planted(ends_not, cpu_seconds=0.05), b"3", "seed 0")


def test_a_slow_parser_breaks_the_law() -> None:
    def slow(raw: bytes) -> None:
        end = process_time() + 0.1
        while process_time() < end:
            pass

    with pytest.raises(LawBroken, match="s of CPU time"):
        judge(_planted(slow, cpu_seconds=0.06), b"3", "seed 0")


def test_a_parser_that_takes_much_memory_breaks_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.law.MOST_MEMORY", 64 << 20)
    assert len(b"x" * (256 << 20))  # an earlier peak, which must not hide the growth
    held: list[mmap] = []

    def take_pages(_: bytes) -> None:
        held.append(mmap(-1, 8 << 20))  # malloc could reuse pages that earlier tests have freed
        held[-1].write(bytes(8 << 20))

    with pytest.raises(LawBroken, match="grew by more than 64 MiB"):
        check(_planted(take_pages), range(20))


def test_a_parser_that_refuses_valid_input_breaks_the_law() -> None:
    with pytest.raises(LawBroken, match="valid input 0 is refused"):
        check(_planted(lambda raw: int("x")), range(1))
