"""Decoding with drafts and without, by turns, on one replica of a real model: tokens per second, and their ratio.

python -m bench.speculation [MODEL] [--rounds N] [--cases NAME ...] [--cpu-time]

Most cases draft from the request's own text; `asked before` also from other answers of the lane. In the last ones, the
model's first four layers are the draft model. Where it is said to be right, what the model's later layers add is
multiplied by 0 (always right) or 0.01 (sometimes): a step takes as long as before, but the texts are poor. They are
sampled with penalties, so that they do not repeat themselves.

With --cpu-time, one thread computes, and only its own time counts: for a machine that has other work to do.
"""

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple

from bench.early_exit import first_layers, with_faint_layers
from bench.speculation_gpu import bench_on_gpu
from bench.timing import Board, table_of_spreads
from octet.clock import Clock, SystemClock
from specialist.models.demo import cache_directory, demo_model
from specialist.models.open import open_checkpoint
from specialist.scheduling.scheduler import StepLoop
from specialist.scheduling.sequence import GREEDY, DraftSource, Request, Sampling
from specialist.scheduling.step import Emitted, Finished
from specialist.server.native_replica import replica_from_checkpoint
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


class Case(NamedTuple):
    asks: list[BegunChat]
    kind: Literal["own text", "lane", "right model", "alike model", "other model"] = "own text"
    sampling: Sampling = GREEDY


_DRAFT_LAYERS, _FAINT = 4, {"right model": 0.0, "alike model": 0.01}
_VARIED = Sampling(temperature=1.0, frequency_penalty=2.0)
CASES: Mapping[str, Case] = {
    "repair": Case([_REPAIR]),
    "summarise": Case([BegunChat(f"Summarise this text in three sentences: {_TEXT}")]),
    "free text": Case(_EXPLAIN[:1]),
    "16 free texts": Case(_EXPLAIN),
    "12 free texts and 4 repairs": Case([*_EXPLAIN[:12], *[_REPAIR] * 4]),
    "free text, asked before": Case(_EXPLAIN[:1], "lane"),
    "free text, a draft model that is always right": Case(_EXPLAIN[:1], "right model", _VARIED),
    "16 free texts, a draft model that is always right": Case(_EXPLAIN, "right model", _VARIED),
    "free text, a draft model that is sometimes right": Case(_EXPLAIN[:1], "alike model", _VARIED),
    "free text, a draft model that is rarely right": Case(_EXPLAIN[:1], "other model", _VARIED),
    "16 free texts, a draft model that is rarely right": Case(_EXPLAIN, "other model", _VARIED),
}


class CpuClock(SystemClock):
    """Counts the time for which this process has computed."""

    def now(self) -> float:
        return time.process_time()


class Decoded(NamedTuple):
    seconds: float  # after the prompts
    answers: list[tuple[int, ...]]
    num_tokens: int  # in this time
    num_steps: int
    drafts: dict[DraftSource, tuple[int, int]]  # tokens that were guessed, and those that were right

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.speculation", description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--cpu-time", action="store_true", help="count the CPU time of one thread")
    parser.add_argument(
        "--device",
        default="cpu",
        help="cuda: a model of the shape of Llama 3.1 8B and a draft model of that of Qwen3 0.6B, with random weights",
    )
    arguments = parser.parse_args()
    if arguments.device != "cpu":
        if arguments.model or arguments.cpu_time or arguments.cases != list(CASES):
            parser.error(f"--device {arguments.device} has its own models and cases")
        for records in bench_on_gpu(SystemClock(), arguments.rounds, arguments.device):
            print(table_of_spreads(records, {}), flush=True)
        return
    model = arguments.model or demo_model(cache_directory())
    whole_prompts = 60.0  # a budget with which no prompt is split, so that all requests soon decode together
    threads, clock = (1, CpuClock()) if arguments.cpu_time else (0, SystemClock())
    settings = ReplicaSettings(
        name="bench", model=model, draft_window=WINDOW, itl_seconds=whole_prompts, threads=threads
    )
    kinds = dict.fromkeys(CASES[case].kind for case in arguments.cases)
    replicas = {kind: _replica(kind, settings, model, clock) for kind in kinds}
    board, names = Board("speculation"), count()
    for number in range(arguments.rounds + 1):  # the first does not count
        for case in arguments.cases:
            windows = (0, WINDOW) if number % 2 else (WINDOW, 0)
            chosen = CASES[case]
            found = {window: _decode(replicas[chosen.kind], chosen, window, names) for window in windows}
            if found[0].answers != found[WINDOW].answers:
                raise SystemExit(f"{case}: drafts changed an answer")
            if number:
                board.add(number, case, "octet", _figures(found[0], found[WINDOW]))
    print(table_of_spreads(board.records(), {}))


def _replica(kind: str, settings: ReplicaSettings, model: Path, clock: Clock) -> AssembledReplica:
    checkpoint = open_checkpoint(model)
    if kind == "own text":
        return replica_from_checkpoint(checkpoint, "bench", settings, clock)
    if kind == "lane":
        return replica_from_checkpoint(checkpoint, "bench", replace(settings, draft_lane=True), clock)
    if kind in _FAINT:
        checkpoint = with_faint_layers(checkpoint, _DRAFT_LAYERS, _FAINT[kind])
    draft = first_layers(checkpoint, _DRAFT_LAYERS)
    return replica_from_checkpoint(checkpoint, "bench", settings, clock, draft=draft)


def _figures(plain: Decoded, drafted: Decoded) -> Iterator[tuple[str, str, float]]:
    yield "without drafts", "tok/s", plain.rate
    yield "with drafts", "tok/s", drafted.rate
    yield "with, relative to without", "x", drafted.rate / plain.rate
    yield "steps, relative to without", "x", drafted.num_steps / plain.num_steps
    for source, (num_drafted, num_accepted) in drafted.drafts.items():
        yield f"drafts of {source}, for each token", "x", num_drafted / drafted.num_tokens
        yield f"drafts of {source} that were right", "%", 100 * num_accepted / num_drafted


def _decode(replica: AssembledReplica, case: Case, window: int, names: "count[int]") -> Decoded:
    scheduler, loop = replica.scheduler, StepLoop(replica.scheduler, replica.engine)
    answers: dict[str, tuple[int, ...]] = {}
    for seed, ask in enumerate(case.asks):
        name = f"r{next(names)}"
        prompt = replica.codec.render([ChatTurn("user", ask.question)]) + replica.codec.encode(ask.begun)
        answers[name] = ()
        stops = frozenset(replica.codec.stop_ids)
        request = Request(name, replica.lane, prompt, _NEW_TOKENS, stop_ids=stops, draft_window=window)
        scheduler.submit(replace(request, sampling=case.sampling, seed=seed))
    began, num_steps, num_tokens, ends = replica.clock.now(), 0, 0, list[Finished]()
    while (step := loop.run_once()) is not None:
        if step.mode == "prefill":
            began, num_steps, num_tokens = replica.clock.now(), 0, 0  # at the last prompt's end
        else:
            num_steps += 1
        for event in scheduler.take_events():
            if isinstance(event, Emitted):
                answers[event.request_id] += event.tokens
                num_tokens += len(event.tokens) if num_steps else 0
            elif isinstance(event, Finished):
                ends.append(event)
    seconds = replica.clock.now() - began
    drafts: dict[DraftSource, tuple[int, int]] = {}
    for source, num_drafted, num_accepted in (each for end in ends for each in end.drafts):
        before = drafts.get(source, (0, 0))
        drafts[source] = before[0] + num_drafted, before[1] + num_accepted
    return Decoded(seconds, list(answers.values()), num_tokens, num_steps, drafts)


if __name__ == "__main__":
    main()
