"""How long a conversation's turns wait for their first token as it grows, with and without reuse."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.admission.live_site import started
from bench.measure import summary
from bench.record import Record
from bench.table import Targets
from octet.sdk.client import Client
from octet.sdk.options import Message

TURNS = 20
EARLY, LATE = 2, TURNS
ANSWER, QUICK_ANSWER = 12, 4
"""Tokens of every answer."""
AGAIN = 5
"""Times that each of the two turns is asked, in turns: what else the machine does then meets both."""
_BENCH = "sessions"
_NAME = "talker"
_QUESTION = (
    "{} was the last one. Now tell me about the next one, and say in plain words what it is good for and what it costs."
)
"""The number is in front: a question is never the beginning of another, and none of it was computed before."""
_FIRST = 100
"""Numbers of three digits, as many tokens each; those asked again differ in the first of them."""
RATIO = f"turn {LATE} over turn {EARLY}"
ON, OFF = f"{TURNS} turns, with reuse", f"{TURNS} turns, without"
SESSION_TARGETS: Targets = {(ON, RATIO): "<= 1.5 x"}


@dataclass(frozen=True, slots=True)
class Turn:
    seconds: float
    """To the first token."""
    computed: int
    """Prompt tokens."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two turns of one conversation."""

    early: Turn
    late: Turn


def measure_sessions(model: Path | None, runs: int, length: int) -> list[Record]:
    """Through a router, to a replica of the model; None: the demo model. Raises SiteFailed."""
    with _site(model, reuse=True) as usual, _site(model, reuse=False) as plain:
        rounds = [_round(usual, plain, number, length) for number in range(runs + 1)][1:]
    return [
        *_records(ON, [reused for reused, _ in rounds]),
        *_records(OFF, [anew for _, anew in rounds]),
    ]


def _records(case: str, pairs: Sequence[Pair]) -> Iterator[Record]:
    for name, turns in ((EARLY, [pair.early for pair in pairs]), (LATE, [pair.late for pair in pairs])):
        yield summary([turn.seconds * 1e3 for turn in turns], _BENCH, case, f"TTFT of turn {name}", "ms", "octet")
        yield summary([turn.computed for turn in turns], _BENCH, case, f"computed at turn {name}", "tokens", "octet")
    ratios = [pair.late.seconds / pair.early.seconds for pair in pairs]
    yield summary(ratios, _BENCH, case, RATIO, "x", "octet")


def _round(usual: Client, plain: Client, number: int, length: int) -> tuple[Pair, Pair]:
    """The same conversation for both; whoever reuses nothing needs to hear only the turns that count."""
    messages: list[Message] = []
    before: dict[int, list[Message]] = {}
    anew: dict[int, Turn] = {}
    for turn in range(1, TURNS + 1):
        before[turn] = list(messages)
        messages.append(_question(_FIRST + turn))
        _, text = _ask(usual, messages, number, length)
        if turn in (EARLY, LATE):
            anew[turn], _ = _ask(plain, messages, number, length)
        messages.append({"role": "assistant", "content": text})
    return _alternating(usual, before, number), Pair(anew[EARLY], anew[LATE])


def _alternating(client: Client, before: Mapping[int, Sequence[Message]], number: int) -> Pair:
    """Other questions at the same two places of a conversation that was had, first at one, then at the other."""
    asked: dict[int, list[Turn]] = {EARLY: [], LATE: []}
    for again in range(AGAIN):
        for turn, heard in asked.items():
            question = _question((2 + again) * _FIRST)
            heard.append(_ask(client, [*before[turn], question], number, 1)[0])
    return Pair(_middle(asked[EARLY]), _middle(asked[LATE]))


def _middle(turns: Sequence[Turn]) -> Turn:
    return sorted(turns, key=lambda turn: turn.seconds)[len(turns) // 2]


def _question(number: int) -> Message:
    return {"role": "user", "content": _QUESTION.format(number)}


def _ask(client: Client, messages: Sequence[Message], number: int, length: int) -> tuple[Turn, str]:
    """Every round has a salt of its own: no conversation finds what another one computed."""
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
        raise RuntimeError("an answer without usage")
    return Turn(first - begun, usage.prompt_tokens - usage.cache_hit_tokens), answer.text


@contextmanager
def _site(model: Path | None, *, reuse: bool) -> Iterator[Client]:
    with TemporaryDirectory(prefix="octet-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        specialist = ["specialist", "--name", _NAME, "--socket", str(folder / "replica.sock")]
        specialist += [] if model is None else ["--model", str(model)]
        specialist += [] if reuse else ["--no-prefix-cache"]
        replica = stack.enter_context(started(specialist, folder / "replica.log"))
        config = folder / "ensemble.yaml"
        config.write_text(f"engine: sim\nspecialists: {{{_NAME}}}\n")
        router = ["router", "--config", str(config), "--port", "0", "--replica", f"{_NAME}={replica}"]
        address = stack.enter_context(started(router, folder / "router.log"))
        yield stack.enter_context(Client(address))
