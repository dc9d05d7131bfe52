"""The law for every parser: what is no input of its is refused by name, soon, and at no great cost in memory."""

import gc
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tests.fuzz.mutate import mutated
from tests.fuzz.parser import Parser

MOST_MEMORY = 512 << 20
"""That a parser's inputs may add to what the process has ever held at once."""
_HANGS = 5
"""Times the bound after which an input is given up."""


class LawBroken(AssertionError):
    """Names the parser and the seed that shows it."""


class _Hangs(BaseException):
    """Not an Exception: no parser may swallow it."""


def check(parser: Parser, seeds: range) -> int:
    """How many of them were refused. Raises LawBroken for the first that breaks it."""
    check_valid(parser, "before anything else")
    before = _peak()
    refused = 0
    for seed in seeds:
        refused += not judge(parser, mutated(parser, seed), f"seed {seed}")
        if _peak() - before > MOST_MEMORY:
            raise LawBroken(f"{parser.name}, seed {seed}: the process grew by more than {MOST_MEMORY >> 20} MiB")
    check_valid(parser, f"after {len(seeds)} inputs")
    gc.collect()
    return refused


def check_valid(parser: Parser, when: str) -> None:
    for index, raw in enumerate(parser.seeds):
        if not judge(parser, raw, f"valid input {index}, {when}"):
            raise LawBroken(f"{parser.name}: valid input {index} is refused {when}: {_why(parser, raw)}")


def judge(parser: Parser, raw: bytes, what: str) -> bool:
    """Whether it was accepted. Raises LawBroken."""
    began = time.process_time()
    try:
        with _given_up(parser.cpu_seconds * _HANGS):
            parser.parse(raw)
        accepted = True
    except parser.refuses:
        accepted = False
    except _Hangs:
        raise LawBroken(f"{parser.name}, {what}: hangs with {shown(raw)}") from None
    except Exception as error:
        raise LawBroken(f"{parser.name}, {what}: {type(error).__name__}: {error!s:.200} from {shown(raw)}") from error
    took = time.process_time() - began
    if took > parser.cpu_seconds:
        raise LawBroken(f"{parser.name}, {what}: {took:.2f} s of a processor for {shown(raw)}")
    return accepted


def shown(raw: bytes) -> str:
    return repr(raw) if len(raw) <= 300 else f"{raw[:200]!r}... {raw[-60:]!r} ({len(raw):,} bytes)"


def _why(parser: Parser, raw: bytes) -> str:
    try:
        parser.parse(raw)
    except parser.refuses as refusal:
        return f"{type(refusal).__name__}: {refusal}"
    return "no more, when asked again"


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@contextmanager
def _given_up(seconds: float) -> Iterator[None]:
    """By the processor's time: a machine that is busy elsewhere hangs nobody."""
    usual: Callable[[int, FrameType | None], object] | int | None = signal.signal(signal.SIGPROF, _hangs)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, usual)


def _hangs(_signal: int, _frame: FrameType | None) -> None:
    raise _Hangs
