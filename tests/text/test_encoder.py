"""Input text is never encoded as a control token."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE

from specialist.models.checkpoint import Vocabulary
from specialist.text.prompt import ControlText, NotText, TextTooLong
from specialist.text.tokenization import Detokenizer, Encoder, TokenPieces
from tests.text.vocabularies import CONTROLS, KINDS, words

encoders = {kind: Encoder(words(kind, bos="<s>").vocabulary) for kind in KINDS}
parsing = {
    kind: Encoder(Vocabulary(words(kind).full, words(kind).vocabulary.control_ids, None, frozenset(), None))
    for kind in KINDS
}
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""The character that SentencePiece uses for a space. It decodes to a space."""

hostile = st.lists(
    st.sampled_from((*CONTROLS, "<", "s>", "<|im", "_start|>", " ", "the", "\n", "ä", "你")), max_size=12
).map("".join)


def decoded(kind: str, tokens: Sequence[int]) -> str:
    detokenizer = Detokenizer(TokenPieces(words(kind).vocabulary))
    return detokenizer.push(tokens) + detokenizer.finish()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "metaspace"])
@given(text=hostile | st.text(st.characters(exclude_characters=SPACE, codec="utf-8"), max_size=40))
def test_no_text_becomes_a_control_token_and_all_of_it_comes_back(kind: str, text: str) -> None:
    for encoder in (encoders[kind], parsing[kind]):
        tokens = encoder.encode(text)
        assert not {*tokens} & {*words(kind).vocabulary.control_ids.values()}
        # This kind of tokenizer drops a leading space when it decodes.
        lost = " " if kind == "first only" else ""
        assert decoded(kind, tokens).lstrip(lost) == text.lstrip(lost)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text("the quick\nßBär12<>|你 ", max_size=40))
def test_ordinary_text_is_encoded_as_by_the_models_own_tokenizer(kind: str, text: str) -> None:
    assert list(encoders[kind].encode(text)) == words(kind).full.encode(text, add_special_tokens=False).ids
    assert encoders[kind].prompt(text) == (words(kind).vocabulary.control_ids["<s>"], *encoders[kind].encode(text))


def test_without_a_token_that_begins_a_text_a_prompt_is_its_text() -> None:
    encoder = Encoder(words("gpt-2").vocabulary)
    assert encoder.prompt("the fox") == encoder.encode("the fox")


def test_a_text_above_the_limit_is_refused_by_its_bytes() -> None:
    encoder = Encoder(words("gpt-2").vocabulary, max_bytes=8)
    assert encoder.encode("ää" * 2)
    for text, got in (("ä" * 5, 10), ("a" * 9, 9), ("a" * (10 << 20), 10 << 20), ("\ud800" * 9, 27)):
        with pytest.raises(TextTooLong) as refused:
            encoder.encode(text, "messages[3].content")
        assert (refused.value.field, refused.value.limit, refused.value.got) == ("messages[3].content", 8, got)


@given(st.text(max_size=9), st.characters(categories=["Cs"]), st.text(max_size=9))
def test_half_a_surrogate_pair_is_refused_by_its_place(before: str, half: str, after: str) -> None:
    with pytest.raises(NotText, match="prompt is not valid Unicode") as refused:
        encoders["gpt-2"].encode(before + half + after)
    assert refused.value.index == len(before)


def test_text_that_only_a_control_token_can_write_is_refused() -> None:
    tokenizer = Tokenizer(BPE({"<": 0, ">": 1, "<>": 2}, [("<", ">")]))
    encoder = Encoder(Vocabulary(tokenizer, {"<>": 2}, None, frozenset(), None))
    assert encoder.encode("><") == (1, 0)
    assert encoder.encode("<>") == (0, 1)
    bare = Tokenizer(BPE({"ab": 0, "a": 1, "b": 2}, [("a", "b")]))
    with pytest.raises(ControlText, match="prompt holds 'ab'"):
        Encoder(Vocabulary(bare, {"ab": 0, "b": 2}, None, frozenset(), None)).encode("ab")
