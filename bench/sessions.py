"""How long turns wait for their first token as a conversation grows, with and without reuse of the cache."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from bench.processes import replica_and_router
from bench.timing import Board, Targets
from octet.client.clients import Client
from octet.client.options import MessageDict
from simulation.results import BenchRecord

TURNS = 20
EARLY, LATE = 2, TURNS
ANSWER, QUICK_ANSWER = 12, 4  # tokens of an answer
AGAIN = 5  # how often each turn is asked, alternating
_BENCH = "sessions"
_NAME = "talker"
_QUESTION = (
    "{} was the last one. Now tell me about the next one, and say in plain words what it is good for and what it costs."
)
"""The number comes first, so that no question is the beginning of another."""
_FIRST = 100  # three digits, so that all numbers have the same number of tokens
RATIO = f"turn {LATE} over turn {EARLY}"
ON, OFF = f"{TURNS} turns, with reuse", f"{TURNS} turns, without"
SESSION_TARGETS: Targets = {(ON, RATIO): "<= 1.5 x"}


class Turn(NamedTuple):
    seconds: float  # seconds until the first token
    computed: int  # computed prompt tokens


def measure_sessions(model: Path | None, runs: int, length: int) -> list[BenchRecord]:
    board = Board(_BENCH)
    with _site(model, reuse=True) as usual, _site(model, reuse=False) as plain:
        for number in range(runs + 1):
            for case, turns in _round(usual, plain, number, length).items():
                if number:
                    board.add(number, case, "octet", _figures(turns))
    return board.records()


def _figures(turns: Mapping[int, Turn]) -> Iterator[tuple[str, str, float]]:
    for name, turn in turns.items():
        yield f"TTFT of turn {name}", "ms", turn.seconds * 1e3
        yield f"computed at turn {name}", "tokens", turn.computed
    yield RATIO, "x", turns[LATE].seconds / turns[EARLY].seconds


def _round(usual: Client, plain: Client, number: int, length: int) -> dict[str, dict[int, Turn]]:
    """Run the same conversation with and without cache reuse; without reuse, send only the measured turns."""
    messages: list[MessageDict] = []
    before: dict[int, list[MessageDict]] = {}
    computed_anew: dict[int, Turn] = {}
    for turn in range(1, TURNS + 1):
        before[turn] = list(messages)
        messages.append(_question(_FIRST + turn))
        _, text = _ask(usual, messages, number, length)
        if turn in (EARLY, LATE):
            computed_anew[turn], _ = _ask(plain, messages, number, length)
        messages.append({"role": "assistant", "content": text})
    return {ON: _alternating(usual, before, number), OFF: computed_anew}


def _alternating(client: Client, before: Mapping[int, Sequence[MessageDict]], number: int) -> dict[int, Turn]:
    """Ask further questions at turns EARLY and LATE alternately. Return the median of the measurements at each turn."""
    asked: dict[int, list[Turn]] = {EARLY: [], LATE: []}
    for again in range(AGAIN):
        for turn, answers in asked.items():
            question = _question((2 + again) * _FIRST)
            answers.append(_ask(client, [*before[turn], question], number, 1)[0])
    return {turn: sorted(answers)[len(answers) // 2] for turn, answers in asked.items()}


def _question(number: int) -> MessageDict:
    return {"role": "user", "content": _QUESTION.format(number)}


def _ask(client: Client, messages: Sequence[MessageDict], number: int, length: int) -> tuple[Turn, str]:
    """Send one turn. Return its figures and the answer. Rounds have different salts, so that they share no cache."""
    salt = number.to_bytes(4, "little")
    begun, first = perf_counter(), 0.0
    with client.stream(
        messages=messages, session="bench", tenant_salt=salt, max_tokens=length, ignore_eos=True, force=_NAME,
        temperature=0.0, repetition_penalty=1.0, timeout=600,
    ) as answer:  # fmt: skip
        for _ in answer:
            first = first or perf_counter()
        usage = answer.receipt.usage
    if usage is None:
        raise RuntimeError("the answer has no usage")
    return Turn(first - begun, usage.prompt_tokens - usage.cache_hit_tokens), answer.text


@contextmanager
def _site(model: Path | None, *, reuse: bool) -> Iterator[Client]:
    options = [] if model is None else ["--model", str(model)]
    options += [] if reuse else ["--no-prefix-cache"]
    with replica_and_router(_NAME, options) as (_, router), Client(router.address) as client:
        yield client
