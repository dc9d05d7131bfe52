"""Collected chunks equal the answer, at a cost linear in its length."""

import time

from hypothesis import given
from hypothesis import strategies as st

from octet.v1 import specialist_pb2 as wire
from router.answers import ChunkCollector


@given(st.lists(st.tuples(st.integers(0, 3), st.text(max_size=3)), max_size=20))
def test_collected_chunks_equal_the_whole_answer(parts: list[tuple[int, str]]) -> None:
    collected, expected = ChunkCollector(), dict[int, str]()
    for index, text in parts:
        head = {} if index in expected else {"id": f"id{index}", "name": f"f{index}"}
        expected[index] = expected.get(index, "") + text
        collected.add(wire.Chunk(text=text, tool_calls=[wire.ToolCallPart(index=index, arguments=text, **head)]))
    whole = collected.chunk()
    assert whole.text == collected.text == "".join(text for _, text in parts)
    assert {part.index: part.arguments for part in whole.tool_calls} == expected
    assert [part.index for part in whole.tool_calls] == sorted(expected)
    assert [(call.id, call.name, call.arguments) for call in collected.tool_calls] == [
        (f"id{index}", f"f{index}", expected[index]) for index in sorted(expected)
    ]


def test_a_long_call_costs_no_more_than_its_length() -> None:
    """The arguments of a tool call come in half a million chunks of one letter. Copying all collected letters for each
    chunk would take minutes."""
    collected, part = ChunkCollector(), wire.Chunk(tool_calls=[wire.ToolCallPart(arguments="x")])
    began = time.process_time()
    for _ in range(500_000):
        collected.add(part)
    assert len(collected.tool_calls[0].arguments) == 500_000
    assert time.process_time() - began < 10
