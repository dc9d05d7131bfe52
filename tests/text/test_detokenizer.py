"""Text decoded token by token equals the text of all tokens decoded together."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE

from specialist.models.checkpoint import Vocabulary
from specialist.text.tokenization import CHARACTER_OF, Detokenizer, TokenPieces, VocabularyRefused
from tests.text.vocabularies import KINDS, words

token_lists = st.lists(st.integers(0, 440), max_size=40)
pieces_of = {kind: TokenPieces(words(kind).vocabulary) for kind in KINDS}


def cut(tokens: list[int], cuts: list[int]) -> list[list[int]]:
    borders = [0, *sorted(at % (len(tokens) + 1) for at in cuts), len(tokens)]
    return [tokens[start:stop] for start, stop in pairwise(borders)]


def at_once(vocabulary: Vocabulary, tokens: list[int]) -> str:
    control = set(vocabulary.control_ids.values())
    return vocabulary.tokenizer.decode([token for token in tokens if token not in control], skip_special_tokens=False)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300)
@given(tokens=token_lists, cuts=st.lists(st.integers(0, 99), max_size=9))
def test_any_tokens_however_cut_are_the_text_of_all(kind: str, tokens: list[int], cuts: list[int]) -> None:
    detokenizer = Detokenizer(pieces_of[kind])
    text = "".join(detokenizer.push(part) for part in cut(tokens, cuts)) + detokenizer.finish()
    assert text == at_once(words(kind).vocabulary, tokens)


@settings(max_examples=300)
@given(st.binary(max_size=12) | st.text(max_size=4).map(str.encode), st.integers(0, 3))
def test_any_bytes_become_what_they_become_at_once(raw: bytes, num_words: int) -> None:
    vocabulary = words("byte-fallback").vocabulary
    ids = vocabulary.tokenizer.get_vocab()
    by_byte, word = [ids[f"<0x{byte:02X}>"] for byte in raw], ids["▁the"]
    tokens = [*[word] * num_words, *by_byte, word, *by_byte]
    detokenizer = Detokenizer(pieces_of["byte-fallback"])
    text = "".join(detokenizer.push([token]) for token in tokens) + detokenizer.finish()
    assert text == at_once(vocabulary, tokens)


@settings(max_examples=300)
@given(st.binary(max_size=12) | st.text(max_size=4).map(str.encode))
def test_bytes_are_read_as_utf_8_once_a_character_is_whole(raw: bytes) -> None:
    tokenizer = words("gpt-2").vocabulary.tokenizer
    tokens = [tokenizer.get_vocab()[CHARACTER_OF[byte]] for byte in raw]
    detokenizer = Detokenizer(pieces_of["gpt-2"])
    parts = [detokenizer.push([token]) for token in tokens]
    assert "".join(parts) + detokenizer.finish() == raw.decode(errors="replace") == tokenizer.decode(tokens)


def test_a_character_is_sent_with_its_last_byte() -> None:
    tokenizer = words("gpt-2").vocabulary.tokenizer
    detokenizer = Detokenizer(pieces_of["gpt-2"])
    tokens = [tokenizer.get_vocab()[CHARACTER_OF[byte]] for byte in "😀a".encode()]
    assert [detokenizer.push([token]) for token in tokens] == ["", "", "", "😀", "a"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_tokens_write_by_themselves_is_what_they_write_together(kind: str) -> None:
    vocabulary = words(kind).vocabulary
    detokenizer = Detokenizer(pieces_of[kind])
    tokens = vocabulary.tokenizer.encode("one é 😀 two", add_special_tokens=False).ids
    spelled = b"".join(map(detokenizer.spell, tokens)).decode()
    assert spelled.lstrip(" ") == detokenizer.push(tokens) + detokenizer.finish()
    assert {detokenizer.spell(token) for token in [*vocabulary.control_ids.values(), 10**6]} == {b""}


@pytest.mark.parametrize("kind", KINDS)
def test_control_tokens_and_unused_ids_write_nothing(kind: str) -> None:
    detokenizer = Detokenizer(pieces_of[kind])
    control = words(kind).vocabulary.control_ids.values()
    assert detokenizer.push([*control, 10**6]) + detokenizer.finish() == ""


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), decoders.Sequence([decoders.Fuse()]), None])
def test_a_decoder_that_cannot_be_streamed_exactly_is_refused(decoder: decoders.Decoder | None) -> None:
    tokenizer = Tokenizer(BPE({"a": 0}, []))
    if decoder is not None:
        tokenizer.decoder = decoder
    with pytest.raises(VocabularyRefused, match="decoder is"):
        TokenPieces(Vocabulary(tokenizer, {}, None, frozenset(), None))
