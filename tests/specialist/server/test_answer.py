"""The text of an answer does not depend on how its tokens are split."""

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from octet.rpc.refusal import Refusal
from specialist.engines.sim.vocabulary import sim_vocabulary
from specialist.scheduling.sequence import GREEDY
from specialist.scheduling.step import Emitted, Finished
from specialist.server.served_request import AnswerChunk, AnswerText, RequestUpdate, RequestUsage, ServedRequest
from specialist.text.codec import VocabularyCodec
from tests.specialist.builders import make_request

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


def test_an_answer_that_cannot_be_decoded_fails_alone_and_says_so() -> None:
    served = ServedRequest("r", "x", (), GREEDY, None, 8, 64, (), False, 0, None, None, b"")
    served.request, served.public_id, served.answer = make_request("r"), "r-public", AnswerText(WORDS.detokenizer(), [])
    (refused,) = served.decode([Emitted("r", (1 << 40,))])
    assert isinstance(refused, Refusal) and "r-public" in str(refused)


@given(st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=4), min_size=1, max_size=10), st.booleans())
def test_plain_answer_is_decoded_later_but_whole(pieces: list[list[int]], ends_in_a_stop: bool) -> None:
    """Its tokens come as the scheduler emitted them. What is left of a character at the end is part of the answer."""
    stops = ["never written"] if ends_in_a_stop else []
    served = ServedRequest("r", "x", (), GREEDY, None, 8, 64, (), False, 0, None, None, b"")
    served.request, served.public_id, served.answer = make_request("r"), "r", AnswerText(WORDS.detokenizer(), stops)
    finished = Finished("r", "length", "")
    sent: list[RequestUpdate] = [served.push_tokens(Emitted("r", tuple(piece)), 0.0) for piece in pieces]
    sent += [served.finish_answer(finished), served.usage(finished, 0.0)]
    *chunks, usage = served.decode(sent)
    tokens = [token for piece in pieces for token in piece]
    expected = WORDS.detokenizer()
    assert isinstance(usage, RequestUsage) and usage.completion_tokens == len(tokens)
    read = [chunk for chunk in chunks if isinstance(chunk, AnswerChunk)]
    assert len(read) == len(chunks)
    assert "".join(chunk.text for chunk in read) == expected.push(tokens) + expected.finish()
    assert [token for chunk in read for token in chunk.tokens] == tokens
