"""Decoding with drafts and without, by turns, on one replica of a real model: tokens per second, and their ratio.

python -m bench.speculation [MODEL] [--rounds N] [--cases NAME ...]
"""

import argparse
import time
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import NamedTuple

from bench.timing import Board, table_of_spreads
from octet.clock import SystemClock
from specialist.models.demo import cache_directory, demo_model
from specialist.scheduling.scheduler import StepLoop
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Emitted, Finished
from specialist.server.native_replica import create_native_replica
from specialist.server.replica import AssembledReplica
from specialist.server.settings import ReplicaSettings
from specialist.text.prompt import ChatTurn

_PROGRAM = """\
#include <iostream>
#include <string>
#include <vector>

struct Account {
    std::string owner;
    double balance = 0.0;
};

double total(const std::vector<Account>& accounts) {
    double sum = 0.0;
    for (std::size_t i = 0; i <= accounts.size(); ++i) {
        sum += accounts[i].balance;
    }
    return sum;
}

void print(const std::vector<Account>& accounts) {
    for (const Account& account : accounts) {
        std::cout << account.owner << ": " << account.balance << "\\n";
    }
}

int main() {
    std::vector<Account> accounts{{"ada", 10.0}, {"bob", 20.5}};
    print(accounts);
    std::cout << total(accounts) << "\\n";
}
"""
_TEXT = (
    "The replica keeps a pool of blocks. Each block holds the keys and values of sixteen tokens. A sequence has a "
    "table of blocks, and sequences with the same beginning share the blocks of that beginning. When a sequence ends, "
    "its blocks stay in the cache until another sequence needs them. If the pool is full, sequences of a lower "
    "priority are preempted, and computed again later."
)
_SUBJECTS = "mutex vector map RAII templates lambdas move const virtual threads futures atomics streams strings"
WINDOW = 16
_NEW_TOKENS = 200


class BegunChat(NamedTuple):
    question: str
    begun: str = ""  # how the answer begins


_REPAIR = BegunChat(
    f"Fix the bug in this program. Answer with the whole program.\n```cpp\n{_PROGRAM}```",
    "Here is the corrected program:\n```cpp\n#include <iostream>\n",
)
_EXPLAIN = [
    BegunChat(f"Explain {subject} in C++ to a beginner.") for subject in f"{_SUBJECTS} iterators sorting".split()
]
CASES: Mapping[str, list[BegunChat]] = {
    "repair": [_REPAIR],
    "summarise": [BegunChat(f"Summarise this text in three sentences: {_TEXT}")],
    "free text": _EXPLAIN[:1],
    "16 free texts": _EXPLAIN,
    "12 free texts and 4 repairs": [*_EXPLAIN[:12], *[_REPAIR] * 4],
}


class Decoded(NamedTuple):
    seconds: float  # after the prompts
    answers: list[tuple[int, ...]]
    num_tokens: int  # in this time
    num_steps: int
    num_drafted: int
    num_accepted: int

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.speculation", description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    arguments = parser.parse_args()
    model = arguments.model or demo_model(cache_directory())
    whole_prompts = 60.0  # a budget with which no prompt is split, so that all requests soon decode together
    settings = ReplicaSettings(name="bench", model=model, draft_window=WINDOW, itl_seconds=whole_prompts)
    replica = create_native_replica(settings, SystemClock())
    board, names = Board("speculation"), count()
    for number in range(arguments.rounds + 1):  # the first does not count
        for case in arguments.cases:
            windows = (0, WINDOW) if number % 2 else (WINDOW, 0)
            found = {window: _decode(replica, CASES[case], window, names) for window in windows}
            if found[0].answers != found[WINDOW].answers:
                raise SystemExit(f"{case}: drafts changed an answer")
            if number:
                board.add(number, case, "octet", _figures(found[0], found[WINDOW]))
    print(table_of_spreads(board.records(), {}))


def _figures(plain: Decoded, drafted: Decoded) -> Iterator[tuple[str, str, float]]:
    yield "without drafts", "tok/s", plain.rate
    yield "with drafts", "tok/s", drafted.rate
    yield "with, relative to without", "x", drafted.rate / plain.rate
    yield "steps, relative to without", "x", drafted.num_steps / plain.num_steps
    if drafted.num_drafted:
        yield "drafts that were right", "%", 100 * drafted.num_accepted / drafted.num_drafted


def _decode(replica: AssembledReplica, asks: list[BegunChat], window: int, names: "count[int]") -> Decoded:
    scheduler, loop = replica.scheduler, StepLoop(replica.scheduler, replica.engine)
    answers: dict[str, tuple[int, ...]] = {}
    for ask in asks:
        name = f"r{next(names)}"
        prompt = replica.codec.render([ChatTurn("user", ask.question)]) + replica.codec.encode(ask.begun)
        answers[name] = ()
        stops = frozenset(replica.codec.stop_ids)
        scheduler.submit(Request(name, replica.lane, prompt, _NEW_TOKENS, stop_ids=stops, draft_window=window))
    began, num_steps, num_tokens, ends = time.perf_counter(), 0, 0, list[Finished]()
    while (step := loop.run_once()) is not None:
        if step.mode == "prefill":
            began, num_steps, num_tokens = time.perf_counter(), 0, 0  # at the last prompt's end
        else:
            num_steps += 1
        for event in scheduler.take_events():
            if isinstance(event, Emitted):
                answers[event.request_id] += event.tokens
                num_tokens += len(event.tokens) if num_steps else 0
            elif isinstance(event, Finished):
                ends.append(event)
    seconds, drafted = time.perf_counter() - began, sum(end.num_drafted for end in ends)
    return Decoded(
        seconds, list(answers.values()), num_tokens, num_steps, drafted, sum(end.num_accepted for end in ends)
    )


if __name__ == "__main__":
    main()
