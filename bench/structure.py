"""The cost of sampling and of structured output: decode steps of a real model with and without them.

python -m bench.structure [MODEL] [--rounds N] [--cpu]
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from statistics import median

from bench.timing import Board, table_of_spreads
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
NO_STRUCTURE = "none"
STEPS = 48
BATCHES = (1, 16)
Clock = Callable[[], float]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.structure", description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    about = "measure CPU time of the engine's thread, for a shared machine"
    parser.add_argument("--cpu", action="store_true", help=about)
    arguments = parser.parse_args()
    clock = time.thread_time if arguments.cpu else time.perf_counter
    model = arguments.model or demo_model(cache_directory())
    whole_prompts = 60.0  # a budget with which no prompt is split, so that all requests soon decode together
    settings = ReplicaSettings(name="bench", model=model, max_running=max(BATCHES), itl_seconds=whole_prompts)
    replica = create_native_replica(settings, SystemClock())
    board, names = Board("structure"), count()
    for number, batch in product(range(arguments.rounds + 1), BATCHES):
        found = {
            kind: _round(replica, *kind, batch, names, clock)
            for kind in product(SAMPLINGS, (NO_STRUCTURE, *STRUCTURES))
        }
        if number:
            board.add(number, f"batch {batch}", "octet", _figures(found))
    print(table_of_spreads(board.records(), {}))


def _figures(found: Mapping[tuple[str, str], float]) -> Iterator[tuple[str, str, float]]:
    """Yield the time of a step and its overheads; `found` has the seconds per step, by sampling and structure."""
    greedy = found["greedy", NO_STRUCTURE]
    for (sampling, structure), seconds in found.items():
        name = f"{sampling}, {structure}"
        yield name, "ms a step", seconds * 1e3
        yield f"{name}: for the structure", "%", (seconds / found[sampling, NO_STRUCTURE] - 1) * 100
        yield f"{name}: in all", "%", (seconds / greedy - 1) * 100


def _round(
    replica: AssembledReplica, sampling: str, structure: str, batch: int, names: "count[int]", clock: Clock
) -> float:
    loop = StepLoop(replica.scheduler, replica.engine)
    prompt = replica.codec.encode("People of the village, one by one:")
    for index in range(batch):
        request = Request(f"r{next(names)}", replica.lane, (*prompt, index), STEPS, seed=index)
        guide = None
        if structure != NO_STRUCTURE:
            guide = Guide(replica.grammars.compile(STRUCTURES[structure]), may_stop=False)
        replica.scheduler.submit(replace(request, sampling=SAMPLINGS[sampling], guide=guide))
    taken: list[float] = []
    while True:
        started = clock()
        step = loop.run_once()
        if step is None:
            replica.scheduler.take_events()
            return median(taken)
        if step.mode == "decode" and len(step.rows) == batch:
            taken.append(clock() - started)


if __name__ == "__main__":
    main()
