"""`octet bench engine`."""

import argparse
from pathlib import Path

from bench.commands.common import (
    FIGURES,
    QUICK_RUNS,
    Benches,
    add_common,
    add_model,
    command,
    count,
    names,
    publish,
    reporting,
    say,
)
from bench.table import table_of_spreads

RUNS = 9
ABOUT = f"""\
Time the engine on a real model: decoding 1, 4, 16 and 32 sequences at once,
prefill, time to the first token (TTFT) and between tokens (ITL), and a warm
prefix against a cold one; beside it the bare linear layers and the weights'
bytes over the read bandwidth ("limit").

With --peers, other engines do the same in the same rounds: hf (transformers),
llamacpp (llama-cpp-python), vllm (vLLM's CPU build). Each is installed into an
environment of its own below $OCTET_CACHE (default: ~/.cache/octet), tried with
different settings, and measured with the fastest. Whoever waits is stopped.
One that cannot be installed, dies or hangs is told in a line and left out; the
exit code is then 1.

{FIGURES}"""


def add(benches: Benches) -> None:
    parser = command(benches, "engine", ABOUT, "the engine on a real model, beside its peers")
    add_common(parser, "small prompts and answers", RUNS)
    add_model(parser)
    parser.add_argument("--peers", type=names, default=(), metavar="NAME,...", help="hf, llamacpp, vllm")
    parser.add_argument("--served", action="store_true", help="measure Octet over gRPC as well")
    parser.add_argument("--runs", type=count, metavar="N", help=f"rounds that count (default: {RUNS})")
    parser.add_argument("--timeout", type=count, default=600, metavar="S", help="seconds an engine may take to answer")
    parser.add_argument("--calibrate", type=Path, metavar="FILE", help="write what steps cost, for the simulation")
    parser.set_defaults(run=reporting(_run_engine))


def _run_engine(arguments: argparse.Namespace) -> int:
    from bench.engine import Options, engine_targets, measure_engine  # loads torch: other benches do without
    from bench.engine_model import open_model
    from specialist.models.demo import cache_directory, demo_model
    from specialist.models.progress import bar

    cache = cache_directory()
    model = arguments.model or demo_model(cache, bar())
    runs = arguments.runs or (QUICK_RUNS if arguments.quick else RUNS)
    options = Options(
        arguments.peers,
        runs,
        cache,
        arguments.timeout,
        quick=arguments.quick,
        calibrate=arguments.calibrate,
        served=arguments.served,
    )
    outcome = measure_engine(open_model(model, cache), options, say)
    publish(arguments, outcome.records, table_of_spreads(outcome.records, engine_targets()), outcome.notes)
    return 1 if outcome.failures else 0
