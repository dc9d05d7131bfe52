"""The cost of sampling and of a structure: decode steps of a real model with and without them.

python -m bench.structure [MODEL] [--rounds N] [--cpu]
"""

import argparse
import json
import time
from collections.abc import Callable
from itertools import count, product
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from octet.clock import SystemClock
from specialist.models.demo import cache_directory, demo_model
from specialist.scheduling.scheduler import StepLoop
from specialist.scheduling.sequence import Request, Sampling
from specialist.server.native_replica import create_native_replica
from specialist.server.replica import AssembledReplica
from specialist.server.settings import ReplicaSettings
from specialist.text.prompt import Structure
from specialist.text.structured_output import Guide

_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "address": {"type": "object", "properties": {"street": {"type": "string"}, "code": {"pattern": "^[0-9]{5}$"}}},
        "tags": {"type": "array", "items": {"enum": ["friend", "colleague", "family"]}, "maxItems": 3},
    },
    "required": ["name", "age", "address", "tags"],
}
_PEOPLE = json.dumps({"type": "array", "items": _PERSON, "minItems": 1000})  # longer than any measurement needs
STRUCTURES = {
    "people": Structure("json_schema", _PEOPLE),
    "prose": Structure("regex", r"(\w+( |, |\. ))*\w+"),
    "words": Structure("regex", r"([a-z]{2,12}( |, |\. )){2000}"),
}
SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=0.8),
    "served": Sampling(temperature=0.6, top_p=0.95, repetition_penalty=1.1),
}
STEPS = 48
BATCHES = (1, 16)


class Case(NamedTuple):
    sampling: str
    structure: str  # empty for none
    batch: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.structure", description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--cpu", action="store_true", help="CPU time of the engine's own thread, for a machine that others use too"
    )
    arguments = parser.parse_args()
    clock = time.thread_time if arguments.cpu else time.perf_counter
    model = arguments.model or demo_model(cache_directory())
    replica = create_native_replica(ReplicaSettings(name="bench", model=model, max_running=max(BATCHES)), SystemClock())
    for batch in BATCHES:
        cases = [Case(*kind, batch) for kind in product(SAMPLINGS, ("", *STRUCTURES))]
        _tell(cases, _measured(replica, cases, arguments.rounds, clock))


def _measured(
    replica: AssembledReplica, cases: list[Case], rounds: int, clock: Callable[[], float]
) -> dict[Case, list[float]]:
    names = count()
    for case in cases:
        _round(replica, case, names, clock)
    found: dict[Case, list[float]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case in cases:
            found[case].append(_round(replica, case, names, clock))
    return found


def _round(replica: AssembledReplica, case: Case, names: "count[int]", clock: Callable[[], float]) -> float:
    loop = StepLoop(replica.scheduler, replica.engine)
    prompt = replica.codec.encode("People of the village, one by one:")
    for index in range(case.batch):
        guide = None
        if case.structure:
            guide = Guide(replica.grammars.compile(STRUCTURES[case.structure]), may_stop=False)
        replica.scheduler.submit(
            Request(
                f"r{next(names)}",
                replica.lane,
                (*prompt, index),
                max_tokens=STEPS,
                seed=index,
                sampling=SAMPLINGS[case.sampling],
                guide=guide,
            )
        )
    taken: list[float] = []
    while True:
        started = clock()
        step = loop.run_once()
        if step is None:
            replica.scheduler.take_events()
            return median(taken)
        if step.mode == "decode" and len(step.rows) == case.batch:
            taken.append(clock() - started)


def _tell(cases: list[Case], found: dict[Case, list[float]]) -> None:
    greedy = median(found[cases[0]])
    for case in cases:
        low, middle, high = quantiles(found[case], n=4)
        plain = median(found[case._replace(structure="")])
        print(
            f"batch {case.batch:2}  {case.sampling:8} {case.structure or 'none':8}"
            f"  {middle * 1e3:7.3f} ms a step ({low * 1e3:.3f} to {high * 1e3:.3f})"
            f"  {(middle / plain - 1) * 100:+6.1f} % for the structure  {(middle / greedy - 1) * 100:+6.1f} % in all",
            flush=True,
        )


if __name__ == "__main__":
    main()
