import json
from pathlib import Path

import pytest

from simulation.traces import MooncakeRequest, TraceError, read_trace

GOOD = {"timestamp": 7, "input_length": 513, "output_length": 0, "hash_ids": [4, 5]}


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_requests_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", GOOD, {**GOOD, "input_length": 1024})
    assert read_trace(path) == [MooncakeRequest(7, 513, 0, (4, 5)), MooncakeRequest(7, 1024, 0, (4, 5))]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "Expecting property name"),
        ("", "Expecting value"),
        ([1], "expected a JSON object, got list"),
        ({"input_length": 1}, "timestamp must be an integer of at least 0, got None"),
        ({**GOOD, "timestamp": True}, "timestamp must be an integer of at least 0, got True"),
        ({**GOOD, "output_length": -1}, "output_length must be an integer of at least 0, got -1"),
        ({**GOOD, "input_length": 0, "hash_ids": []}, "input_length must be at least 1, got 0"),
        ({**GOOD, "hash_ids": 4}, "hash_ids must be a list, got 4"),
        ({**GOOD, "hash_ids": [4, 2**32]}, "hash_ids must hold integers in"),
        ({**GOOD, "hash_ids": [4, "5"]}, "hash_ids must hold integers in .* got '5'"),
        ({**GOOD, "hash_ids": [4]}, "513 tokens make 2 blocks, got 1 hash_ids"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: object, why: str) -> None:
    path = write(tmp_path / "trace.jsonl", GOOD, line)
    with pytest.raises(TraceError, match=f"trace.jsonl, line 2: .*{why}") as caught:
        read_trace(path)
    assert (caught.value.path, caught.value.line) == (path, 2)


def test_bytes_that_are_not_text_are_refused_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\xff\xfe\xfd\n")
    with pytest.raises(TraceError, match="line 1"):
        read_trace(path)


def test_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="the file is empty"):
        read_trace(write(tmp_path / "trace.jsonl"))
