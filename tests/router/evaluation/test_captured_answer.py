"""A captured answer is complete or missing, and releases all the bytes it reserved."""

from hypothesis import given
from hypothesis import strategies as st

from octet.v1 import inference_pb2, specialist_pb2
from router.quality.answers import ByteBudget, CapturedAnswer

texts = st.lists(st.text(max_size=30), max_size=30)


def raw(text: str, num_tokens: int = 1) -> bytes:
    chunk = specialist_pb2.Chunk(text=text, token_ids=range(num_tokens))
    event: bytes = specialist_pb2.GenerateEvent(chunk=chunk).SerializeToString()
    return event


@given(texts=texts, most=st.integers(0, 400), room_bytes=st.integers(0, 3000))
def test_text_is_complete_or_missing(texts: list[str], most: int, room_bytes: int) -> None:
    budget = ByteBudget(room_bytes)
    captured = CapturedAnswer(budget, most)
    taken = [captured.add(raw(text)) for text in texts]
    assert taken == sorted(taken, reverse=True), "after the first refused chunk, every chunk must be refused"
    whole, size = "".join(texts), len("".join(texts).encode())
    text = captured.text()
    assert text in (whole, None)
    if size > most:
        assert text is None
    elif sum(len(raw(text)) + 4 for text in texts) <= min(room_bytes, most * 8 + 1024):
        assert text == whole
    assert captured.num_bytes == budget.taken <= room_bytes
    captured.drop()
    captured.drop()
    assert (budget.taken, captured.text(), captured.add(raw("x"))) == (0, None, False)


@given(st.lists(st.lists(st.integers(0, 300), max_size=20), max_size=8))
def test_captured_answers_together_stay_within_the_budget(answers: list[list[int]]) -> None:
    budget = ByteBudget(2000)
    captures = [CapturedAnswer(budget, 10_000) for _ in answers]
    for number in range(20):
        for captured, sizes in zip(captures, answers, strict=True):
            if number < len(sizes):
                captured.add(raw("x" * sizes[number]))
            assert budget.taken == sum(each.num_bytes for each in captures) <= 2000
    for captured in captures:
        captured.drop()
    assert not budget.taken


def test_an_answer_with_one_token_per_chunk_is_captured() -> None:
    most = 128 << 10
    captured = CapturedAnswer(ByteBudget(16 << 20), most)
    num_tokens = most // 3
    assert all(captured.add(raw("abc")) for _ in range(num_tokens))
    assert captured.text() == "abc" * num_tokens


def test_endless_empty_chunks_exceed_the_limit() -> None:
    captured = CapturedAnswer(ByteBudget(1 << 30), 1024)
    num_taken = 0
    while captured.add(raw("", 0)):
        num_taken += 1
        assert num_taken < 10_000
    assert captured.text() is None


@given(st.binary(min_size=1, max_size=60))
def test_malformed_events_have_no_text(noise: bytes) -> None:
    captured = CapturedAnswer(ByteBudget(1000), 1000)
    captured.add(b"\x12" + noise)
    text = captured.text()
    assert text is None or text == specialist_pb2.GenerateEvent.FromString(b"\x12" + noise).chunk.text


def test_a_chunk_has_the_same_bytes_from_router_and_replica() -> None:
    chunk = specialist_pb2.Chunk(text="ä", token_ids=[1, 2])
    assert raw("ä", 0) == inference_pb2.InferEvent(chunk=specialist_pb2.Chunk(text="ä")).SerializeToString()
    assert inference_pb2.InferEvent(chunk=chunk).SerializeToString()[:1] == b"\x12"
