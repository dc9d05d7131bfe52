"""Every limit is defined once, and Describe returns it."""

from hypothesis import given
from hypothesis import strategies as st

from octet.limits import Range
from specialist.engines.sim.vocabulary import sim_vocabulary
from specialist.server.validation import REQUEST_BYTES, GenerateLimits
from specialist.text.codec import VocabularyCodec


@given(context=st.integers(8, 1 << 24))
def test_prompt_limit_is_within_the_request_limit(context: int) -> None:
    limits = GenerateLimits(context, vocab_size=259)
    assert limits.prompt_bytes == limits.sizes()["text"] <= REQUEST_BYTES
    assert limits.prompt_bytes == min(16 * context, REQUEST_BYTES)


def test_the_codec_has_no_lower_limit_than_the_service() -> None:
    vocabulary = sim_vocabulary()
    words = VocabularyCodec(vocabulary, vocabulary.tokenizer.get_vocab_size())
    size = (1 << 20) + 1
    assert size <= GenerateLimits(1 << 20, vocab_size=259).prompt_bytes
    assert len(words.encode("x" * size)) == size


def test_a_temperature_is_zero_or_at_least_the_minimum() -> None:
    limits = GenerateLimits(512, vocab_size=259)
    allowed, reported = limits.ranges()["sampling.temperature"], dict(limits.describe())
    assert [value in allowed for value in (0, 0.0, -0.0, 1e-4, 100)] == [True] * 5
    assert [value in allowed for value in (1e-310, 9.9e-5, -1e-4, 100.1)] == [False] * 4
    assert reported["sampling.temperature"] == "0 or in [0.0001, 100]"
    assert reported["sampling.repetition_penalty"] == "in [0.01, 10]"


@given(least=st.floats(0.1, 5), width=st.floats(0.1, 5), value=st.floats(), is_open=st.booleans(), zero=st.booleans())
def test_range_describes_itself(least: float, width: float, value: float, is_open: bool, zero: bool) -> None:
    allowed = Range(least, least + width, open=is_open, or_zero=zero)
    assert (0 in allowed) == zero == str(allowed).startswith("0 or ")
    assert (least in allowed) == ("[" in str(allowed)) == (not is_open)
    assert value not in allowed or value == 0 or least <= value <= least + width
