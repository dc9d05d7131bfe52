"""What is kept is what was said, or nothing; and the room has it all back afterwards."""

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
    room = ByteBudget(room_bytes)
    kept = CapturedAnswer(room, most)
    taken = [kept.add(raw(text)) for text in texts]
    assert taken == sorted(taken, reverse=True), "once too much, always too much"
    whole, size = "".join(texts), len("".join(texts).encode())
    told = kept.text()
    assert told in (whole, None)
    if size > most:
        assert told is None
    elif sum(len(raw(text)) + 4 for text in texts) <= min(room_bytes, most * 8 + 1024):
        assert told == whole
    assert kept.num_bytes == room.taken <= room_bytes
    kept.drop()
    kept.drop()
    assert (room.taken, kept.text(), kept.add(raw("x"))) == (0, None, False)


@given(st.lists(st.lists(st.integers(0, 300), max_size=20), max_size=8))
def test_all_of_them_together_stay_within_the_room(answers: list[list[int]]) -> None:
    room = ByteBudget(2000)
    kepts = [CapturedAnswer(room, 10_000) for _ in answers]
    for number in range(20):
        for kept, sizes in zip(kepts, answers, strict=True):
            if number < len(sizes):
                kept.add(raw("x" * sizes[number]))
            assert room.taken == sum(each.num_bytes for each in kepts) <= 2000
    for kept in kepts:
        kept.drop()
    assert not room.taken


def test_a_token_a_chunk_is_no_reason_to_leave_an_answer_out() -> None:
    most = 128 << 10
    kept = CapturedAnswer(ByteBudget(16 << 20), most)
    num_tokens = most // 3
    assert all(kept.add(raw("abc")) for _ in range(num_tokens))
    assert kept.text() == "abc" * num_tokens


def test_endless_nothing_is_too_much_as_well() -> None:
    kept = CapturedAnswer(ByteBudget(1 << 30), 1024)
    num_taken = 0
    while kept.add(raw("", 0)):
        num_taken += 1
        assert num_taken < 10_000
    assert kept.text() is None


@given(st.binary(min_size=1, max_size=60))
def test_what_is_no_event_is_no_text(noise: bytes) -> None:
    kept = CapturedAnswer(ByteBudget(1000), 1000)
    kept.add(b"\x12" + noise)
    told = kept.text()
    assert told is None or told == specialist_pb2.GenerateEvent.FromString(b"\x12" + noise).chunk.text


def test_a_routers_chunk_has_the_bytes_of_a_replicas() -> None:
    chunk = specialist_pb2.Chunk(text="ä", token_ids=[1, 2])
    assert raw("ä", 0) == inference_pb2.InferEvent(chunk=specialist_pb2.Chunk(text="ä")).SerializeToString()
    assert inference_pb2.InferEvent(chunk=chunk).SerializeToString()[:1] == b"\x12"
