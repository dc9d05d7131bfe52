"""Detectors recognise the output of tools and ignore prose about it."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from octet.config.annotations import DETECTORS as NAMED
from octet.config.ensemble import RuleConfig
from router.routing.normal_text import fold_unicode
from router.routing.rules.detectors import DETECTORS, rule_detector
from router.routing.rules.text import RuleMatch, ScannedText, TextMark
from tests.router.routing import texts

EXAMPLES = {
    "linker-output": texts.LINKER,
    "stack-trace": texts.STACK_TRACE,
    "sanitizer-report": texts.SANITIZER,
    "build-text": texts.BUILD,
    "sfinae-heavy": texts.SFINAE,
}
CASES = [(name, kind, text) for name, cases in EXAMPLES.items() for kind, text in cases.items()]
BORDERS = st.text(alphabet="abc xyz.,?!\n", max_size=200)


def detected(name: str, text: str) -> RuleMatch | None:
    return DETECTORS[name](ScannedText(text))


def test_every_configurable_detector_exists_and_is_tested() -> None:
    assert set(DETECTORS) == set(NAMED) == set(EXAMPLES)


@pytest.mark.parametrize(("name", "kind", "text"), CASES, ids=[f"{name}: {kind}" for name, kind, _ in CASES])
def test_tool_output_is_recognised_within_other_text(name: str, kind: str, text: str) -> None:
    alone = detected(name, text)
    assert alone is not None
    assert 1 <= alone.line <= text.count("\n") + 1
    quoted = detected(name, f"Please help me with this:\n\n```\n{text}\n```\nThanks!")
    assert quoted is not None
    assert quoted.line == alone.line + 3
    assert detected(name, text.replace("\n", "\r\n")) is not None


@pytest.mark.parametrize("kind", texts.NOTHING)
def test_prose_is_not_tool_output(kind: str) -> None:
    assert [name for name in DETECTORS if detected(name, texts.NOTHING[kind])] == []


@pytest.mark.parametrize("name", ["linker-output", "build-text", "sfinae-heavy"])
def test_each_example_is_recognised_by_one_detector_only(name: str) -> None:
    for kind, text in EXAMPLES[name].items():
        assert [other for other in DETECTORS if other != name and detected(other, text)] == [], kind


@given(st.sampled_from(CASES), BORDERS, BORDERS)
def test_text_around_a_report_does_not_hide_it(case: tuple[str, str, str], before: str, after: str) -> None:
    name, _, text = case
    if name != "sfinae-heavy":
        assert detected(name, f"{before}\n{text}\n{after}") is not None


@given(st.text(max_size=400))
def test_any_text_is_scanned_without_errors(text: str) -> None:
    for name in DETECTORS:
        finding = detected(name, text)
        assert finding is None or (1 <= finding.line <= text.count("\n") + 1 and "\n" not in str(finding))


@given(
    st.lists(st.sampled_from(["SELECT", "FROM", "JOIN", "WHERE"]), unique=True),
    st.lists(st.sampled_from(["SELECT", "FROM", "JOIN", "WHERE", "select"]), max_size=8),
    st.integers(1, 4),
)
def test_literal_pieces_count_once_each(pieces: list[str], words: list[str], at_least: int) -> None:
    detect = rule_detector(RuleConfig("sql", "sql", contains=tuple(pieces), at_least=at_least))
    matched = detect(ScannedText("\n".join(words))) is not None
    assert matched == (len(set(pieces) & set(words)) >= at_least)


@pytest.mark.parametrize(
    "piece", ["怎么\uff0c", "1\u20262", "a\u00a0b", "Übersicht", "\uff43\uff4d\uff41\uff4b\uff45", "e\u0301"]
)
def test_a_rule_finds_its_pieces_in_any_unicode_form(piece: str) -> None:
    detect = rule_detector(RuleConfig("odd", "odd", contains=(piece,)))
    assert detect(ScannedText(f"x {piece} y")) and detect(ScannedText(f"x {fold_unicode(piece)} y"))


def test_a_rule_of_invisible_characters_matches_nothing() -> None:
    assert rule_detector(RuleConfig("odd", "odd", contains=("\u200b",)))(ScannedText("a \u200b b")) is None


def test_a_rule_needs_a_known_detector() -> None:
    with pytest.raises(KeyError, match="crystal-ball"):
        rule_detector(RuleConfig("x", "y", detect="crystal-ball"))


PIECES = st.sampled_from(
    ["ld", "Error", "x", "1", "_", ": ", " ", "(", "\n", "\N{SNOWMAN}", "\N{KELVIN SIGN}", "\N{ROMAN NUMERAL ONE}"]
)


@given(st.lists(PIECES, max_size=12).map("".join), st.lists(PIECES, min_size=1, max_size=3).map("".join))
def test_the_word_index_misses_no_detector(text: str, piece: str) -> None:
    assume(all(fold_unicode(each) == each for each in (text, piece, f"{text}{piece}{text}")))
    assert ScannedText(text).find(TextMark(piece)) == text.find(piece)
    assert ScannedText(f"{text}{piece}{text}").find(TextMark(piece)) >= 0
