"""`octet bench scheduler`."""

import argparse

from bench import scheduler
from bench.commands.common import FIGURES, QUICK_RUNS, Benches, add_common, command, publish, reporting
from bench.table import table_of_spreads

RUNS = 31
ABOUT = f"""\
Time the scheduler alone, without an engine. A step is what a replica does
between two forward passes: commit, take the events, assemble. It is timed with
many running or waiting, with a blocked queue, chunked prompts, speculation and
preemption; so are a submission and a cancellation.

{FIGURES}"""


def add(benches: Benches) -> None:
    parser = command(benches, "scheduler", ABOUT, "the scheduler: its steps and its queue")
    add_common(parser, "no queue above 1,000", RUNS)
    parser.set_defaults(run=reporting(_run_scheduler))


def _run_scheduler(arguments: argparse.Namespace) -> int:
    measure, sizes = scheduler.measure_scheduler, scheduler.NUMS_WAITING
    records = measure(QUICK_RUNS, sizes[:2]) if arguments.quick else measure(RUNS)
    publish(arguments, records, table_of_spreads(records, scheduler.scheduler_targets()))
    return 0
