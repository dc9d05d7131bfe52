"""What a guide allows depends only on the tokens, not on earlier calls. A structure that cannot be followed is
refused."""

import json
from random import Random
from typing import Any

import pytest

from octet.rpc.checks import InvalidValue
from specialist.engines.sim.vocabulary import sim_vocabulary
from specialist.scheduling.sequence import GuideExhausted
from specialist.text.prompt import Structure
from specialist.text.structured_output import GrammarCache, GrammarLimits, Guide

VOCABULARY = sim_vocabulary()
SIZE = VOCABULARY.tokenizer.get_vocab_size()
END = min(VOCABULARY.eos_ids)
GRAMMARS = GrammarCache(VOCABULARY, SIZE)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a", "b"]}
PERSON = Structure("json_schema", json.dumps(SCHEMA))


def tokens(text: str) -> tuple[int, ...]:
    return tuple(VOCABULARY.tokenizer.encode(text, add_special_tokens=False).ids)


def may_follow(mask: bytes | None) -> set[int]:
    assert mask is not None
    return {token for token in range(SIZE) if mask[token >> 3] >> (token & 7) & 1}


def test_where_a_guide_is_depends_on_the_tokens_alone() -> None:
    """A guide that has been used for other tokens gives the same results as a new guide."""
    texts = ['{"a":1,"b":"x"}', '{"a":-20,\n "b" : "yz"}', '{ "a":7,"b":""}']
    rng = Random(1)
    used = Guide(GRAMMARS.compile(PERSON))
    for _ in range(300):
        output = tokens(rng.choice(texts))
        output = output[: rng.randint(0, len(output))]
        known = rng.randint(0, len(output))
        fresh = Guide(GRAMMARS.compile(PERSON))
        assert used.ended(output[:known], output[known:]) == fresh.ended((), output)
        assert used.allowed(output[:known], output[known:]) == fresh.allowed(output)


@pytest.mark.parametrize("may_stop", [True, False])
def test_a_token_that_is_taken_is_one_of_those_allowed(may_stop: bool) -> None:
    """`takes` accepts exactly the tokens that `allowed` permits, except stop tokens."""
    for structure, text in (
        (PERSON, '{"a":-20,\n "b" : "yz"}'),
        (Structure("regex", "[a-c]{2,9}(xyz|xyy)?"), "abcabxyz"),
        (Structure("choice", choices=("yes", "yes sir", "no")), "yes sir"),
    ):
        output, used = tokens(text), Guide(GRAMMARS.compile(structure), may_stop=may_stop)
        for count in (*range(len(output) + 1), *range(len(output), -1, -1)):
            allowed = may_follow(Guide(GRAMMARS.compile(structure), may_stop=may_stop).allowed(output[:count])) - {END}
            known = count // 2
            assert {t for t in range(SIZE) if used.takes(output[:known], output[known:count], t)} == allowed
    assert not used.takes(tokens("yx"), (), *tokens("s"))
    assert not used.takes((), tokens("yx"), *tokens("s"))
    assert used.takes(tokens("y"), (), *tokens("e"))


def test_a_draft_that_does_not_fit_decides_nothing() -> None:
    guide = Guide(GRAMMARS.compile(Structure("choice", choices=("abc", "abd"))))
    before = guide.allowed(tokens("ab"))
    for guess in ("x", "cc", "ca"):
        assert guide.allowed(tokens("ab"), tokens(guess)) is None
    assert guide.allowed(tokens("abc"), (END,)) is None
    assert guide.allowed(tokens("a"), tokens("b")) == before
    assert may_follow(before) == {*tokens("c"), *tokens("d")}


def test_a_generated_token_that_does_not_fit_is_an_error() -> None:
    guide = Guide(GRAMMARS.compile(Structure("choice", choices=("abc",))))
    assert not guide.ended(tokens("x"), ())
    with pytest.raises(GuideExhausted):
        guide.allowed(tokens("ax"))
    assert may_follow(guide.allowed(tokens("a"))) == set(tokens("b"))


def test_a_stop_token_only_where_the_grammar_may_end() -> None:
    structure = Structure("regex", "a{2,3}")
    guide, endless = Guide(GRAMMARS.compile(structure)), Guide(GRAMMARS.compile(structure), may_stop=False)
    assert may_follow(guide.allowed(tokens("a"))) == set(tokens("a"))
    assert may_follow(guide.allowed(tokens("aa"))) == {*tokens("a"), END}
    assert may_follow(endless.allowed(tokens("aa"))) == set(tokens("a"))
    assert not guide.ended(tokens("a"), tokens("a"))
    assert guide.ended(tokens("a"), tokens("aa")) and endless.ended(tokens("aa"), tokens("a"))


@pytest.mark.parametrize("more", range(33))
def test_a_vocabulary_may_have_any_size(more: int) -> None:
    grammars = GrammarCache(VOCABULARY, SIZE + more)
    guide = Guide(grammars.compile(Structure("regex", "a{2,3}")), may_stop=False)
    assert may_follow(guide.allowed(tokens("aa"))) == set(tokens("a"))


def test_a_control_token_is_never_part_of_a_text() -> None:
    guide = Guide(GRAMMARS.compile(Structure("regex", "(?s:.*)")))
    assert may_follow(guide.allowed(())) & set(VOCABULARY.control_ids.values()) == {END}


def nested(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


@pytest.mark.parametrize(
    ("structure", "says"),
    [
        (Structure("json_schema", "{"), "JSON"),
        (Structure("json_schema", "[1]"), "a JSON object"),
        (Structure("json_schema", '{"maximum": NaN}'), "JSON"),
        (Structure("json_schema", nested(1000)), "64 levels"),
        (Structure("json_schema", '{"$ref": "#"}'), "some value satisfies"),
        (Structure("json_schema", '{"$ref": "https://example.com/schema"}'), "JSON Schema"),
        (Structure("json_schema", '{"not": {"type": "string"}}'), "keywords"),
        (Structure("json_schema", '{"type": "strange"}'), "JSON Schema"),
        (Structure("json_schema", '{"type": "string", "pattern": "("}'), "JSON Schema"),
        (Structure("json_schema", '{"type": "integer", "minimum": 3, "maximum": 2}'), "some value satisfies"),
        (Structure("regex", "("), "regular expression"),
        (Structure("regex", "a)|(b"), "regular expression"),
        (Structure("regex", "(?=a)b"), "look-around"),
        (Structure("regex", r"(a)\1"), "references"),
    ],
)
def test_an_unsupported_structure_is_refused(structure: Structure, says: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        GRAMMARS.compile(structure)
    assert says in refused.value.limit and refused.value.value
    assert GRAMMARS.get(structure) is None


@pytest.mark.parametrize(
    ("structure", "says"),
    [
        (Structure("json_schema", '{"properties": {"a": {"type": "strange"}}}'), "Invalid type: strange"),
        (Structure("json_schema", '{"not": {}}'), 'Unimplemented keys: ["not"]'),
        (Structure("json_schema", '{"oneOf": [{"type": "string"}, {"minLength": 3}]}'), "oneOf constraints are not "),
        (Structure("json_schema", '{"type": "string", "pattern": "("}'), "unclosed group"),
        (Structure("regex", "a(?=b)"), "look-around, including look-ahead and look-behind, is not supported"),
        (Structure("regex", r"[^\s\S]"), "one that nothing matches"),
    ],
)
def test_the_refusal_names_the_reason(structure: Structure, says: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        GRAMMARS.compile(structure)
    reason = refused.value.value
    assert reason.startswith(says) and len(reason) <= 160
    inside = ("start:", "ANSWER", "answer:", "x-guidance", "verbose", "NoExtensionBias", "coerce_one_of", "at 2(", "\n")
    assert not any(word in reason for word in inside)


def test_the_most_recent_grammars_are_kept() -> None:
    grammars = GrammarCache(VOCABULARY, SIZE, GrammarLimits(kept=3, kept_bytes=100))
    first, *others = (Structure("regex", letter) for letter in "abcd")
    kept = grammars.compile(first)
    assert grammars.compile(first) is kept and grammars.get(first) is kept
    for other in others[:2]:
        grammars.compile(other)
    assert grammars.get(first) is kept
    grammars.compile(others[2])
    assert grammars.get(first) is kept and grammars.get(others[0]) is None and len(grammars) == 3
    grammars.compile(Structure("regex", "x" * 99))
    assert len(grammars) == 2
    grammars.compile(Structure("regex", "x" * 101))
    assert len(grammars) == 0


def test_options_inside_a_schema_do_not_count() -> None:
    own: dict[str, Any] = {"x-guidance": {"lenient": True}, "not": {"type": "string"}}
    with pytest.raises(InvalidValue):
        GRAMMARS.compile(Structure("json_schema", json.dumps(own)))
