"""The text of an answer does not depend on how its tokens are split."""

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from specialist.engines.sim.vocabulary import sim_vocabulary
from specialist.server.served_request import AnswerText
from specialist.text.codec import VocabularyCodec

VOCABULARY = sim_vocabulary()
WORDS = VocabularyCodec(VOCABULARY, VOCABULARY.tokenizer.get_vocab_size())
texts = st.text(st.sampled_from("abcä€😀"), min_size=1, max_size=30)
stops = st.lists(st.text(st.sampled_from("abcä"), min_size=1, max_size=3), max_size=3)
cuts = st.lists(st.integers(1, 5), max_size=40)


def first_stop(text: str, stops: list[str]) -> int:
    return min((text.index(stop) for stop in stops if stop in text), default=len(text))


@given(texts, stops, cuts)
def test_text_ends_before_the_first_stop_string_in_whole_characters(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    tokens = WORDS.encode(text)
    answer = AnswerText(WORDS.detokenizer(), stops)
    bounds = [0, *(bound for bound in accumulate(cuts) if bound < len(tokens)), len(tokens)]
    said, taken = "", 0
    for start, stop in pairwise(bounds):
        piece = answer.push(tokens[start:stop])
        said += piece.text
        taken += len(piece.tokens)
        assert "\ufffd" not in piece.text
    said += answer.finish().text
    begin = first_stop(text, stops)
    assert said == text[:begin]
    assert answer.num_tokens == taken
    if begin < len(text):
        assert answer.stop_string is not None and text.startswith(answer.stop_string, begin)
    else:
        assert answer.stop_string is None and taken == len(tokens)


def test_tokens_after_a_stop_string_are_dropped() -> None:
    answer = AnswerText(WORDS.detokenizer(), ["b"])
    piece = answer.push(WORDS.encode("aabaa"))
    assert (piece.text, len(piece.tokens), answer.num_tokens) == ("aa", 3, 3)
    assert answer.finish().text == ""
