"""Writing where nobody may be reading."""

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.supervise.outlet import Outlet

Pipe = tuple[int, int]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reading, writing = os.pipe()
    yield reading, writing
    for fd in (reading, writing):
        os.close(fd)


def read_all(reading: int, outlet: Outlet) -> str:
    os.set_blocking(reading, False)
    heard = b""
    while True:
        outlet.flush()
        try:
            heard += os.read(reading, 1 << 16)
        except BlockingIOError:
            return heard.decode()


def test_nobody_reads_and_nothing_waits(pipe: Pipe) -> None:
    reading, writing = pipe
    outlet = Outlet(writing)
    lines = [f"{number} {'x' * 100}\n" for number in range(5_000)]
    assert all(map(outlet.write, lines))
    assert [outlet.waits, read_all(reading, outlet), outlet.waits] == [True, "".join(lines), False]
    assert os.get_blocking(writing), "others who write there see no difference"


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(0, 2000))
def test_what_is_too_much_is_lost_in_whole_pieces_and_told(sizes: list[int], most: int) -> None:
    reading, writing = os.pipe()
    outlet = Outlet(writing, most)
    while os.write(writing, b"." * 4096) and _has_room(writing):
        continue
    lines = [f"{number}:{'x' * size}\n" for number, size in enumerate(sizes)]
    kept = [line for line in lines if outlet.write(line)]
    heard = read_all(reading, outlet).lstrip(".")
    lost = len(lines) - len(kept)
    note = f"... {lost} lines are lost here: nobody was reading\n" if lost else ""
    assert heard == "".join(kept) + note
    assert len("".join(kept)) <= max(most, len(lines[0]))
    for fd in (reading, writing, outlet.fd):
        os.close(fd)


def _has_room(writing: int) -> bool:
    return bool(select.select([], [writing], [], 0)[1])


def test_a_reader_that_is_gone_is_nobody() -> None:
    reading, writing = os.pipe()
    outlet = Outlet(writing)
    os.close(reading)
    assert outlet.write("to nobody\n") and not outlet.waits
    outlet.finish()
    os.close(writing)


def test_a_file_is_gone_on_with(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        file.write("before\n")
        file.flush()
        outlet = Outlet(file.fileno())
        assert outlet.write("between\n") and not outlet.waits
        file.write("after\n")
    assert (tmp_path / "log").read_text() == "before\nbetween\nafter\n"


def test_the_last_words_do_not_wait_for_ever(pipe: Pipe) -> None:
    outlet = Outlet(pipe[1])
    outlet.write("x" * (1 << 19))
    outlet.finish()
    assert outlet.waits
