"""`octet bench engine`."""

import argparse
from pathlib import Path
from typing import get_args

from bench.commands.common import QUICK_RUNS, Benches, add_bench, add_model, names, publish_findings, say
from octet.cli.arguments import parse_positive
from specialist.engines.native.settings import DType

RUNS, PEER_RUNS = 9, 5
DTYPES: tuple[str, ...] = get_args(DType)
ABOUT = """\
Time the engine on a real model: decoding 1, 4, 16 and 32 sequences at once,
prefill, time to the first token (TTFT) and between tokens (ITL), and a warm
prefix against a cold one; beside it the bare linear layers and the weights'
bytes over the read bandwidth ("limit"). That is the part "decode" (--parts).

The part "open-loop" sends requests at 30, 60 and 90 % of the capacity that is
measured first, also over gRPC: TTFT, ITL, and how many answers have their first
token within a second and the others at 100 ms on average (goodput); of the
peers, vllm takes part. In the part "adapters", 16 sequences share 1, 4 and 16
adapters, with turns that last ("octet") and with a turn after every step
("octet interleaved"); if it is the only part, vllm takes part.

With --device cuda Octet's own engine computes on an accelerator, in plain
PyTorch, without peers.

With --peers, other engines do the same in the same rounds: hf (transformers),
llamacpp (llama-cpp-python), vllm (vLLM's CPU build). Each is installed into an
environment of its own below $OCTET_CACHE (default: ~/.cache/octet), tried with
different settings, and measured with the fastest. Waiting systems are stopped.
One that cannot be installed, dies or hangs is reported and left out; the exit
code is then 1.
"""


def add(benches: Benches) -> None:
    summary = "the engine on a real model, beside its peers"
    parser = add_bench(benches, "engine", ABOUT, summary, "small prompts and answers", RUNS, _run_engine)
    add_model(parser)
    parser.add_argument("--peers", type=names, default=(), metavar="NAME,...", help="hf, llamacpp, vllm")
    parts = "decode, open-loop, adapters (default: decode)"
    parser.add_argument("--parts", type=names, default=("decode",), metavar="PART,...", help=parts)
    parser.add_argument("--device", default="cpu", help="that Octet's engine computes on: cpu, cuda (default: cpu)")
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help=f"on cuda (default: {DTYPES[0]})")
    parser.add_argument("--served", action="store_true", help="measure Octet over gRPC as well")
    rounds = f"rounds that count (default: {RUNS}, with --peers {PEER_RUNS})"
    parser.add_argument("--runs", type=parse_positive, metavar="N", help=rounds)
    timeout = "seconds an engine may take to answer"
    parser.add_argument("--timeout", type=parse_positive, default=600, metavar="S", help=timeout)
    parser.add_argument("--calibrate", type=Path, metavar="FILE", help="write the cost of steps, for the simulation")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw each part by its load: .svg or .png")


def _run_engine(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from bench.engine import PARTS, EngineOptions, measure_engine
    from bench.engine_decode import TARGETS, open_model
    from bench.plots import ENGINE
    from specialist.models.demo import cache_directory, demo_model
    from specialist.models.progress import bar

    if not arguments.parts or not set(arguments.parts) <= set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}, got {','.join(arguments.parts)!r}")
    if arguments.peers and arguments.device != "cpu":
        parser.error(f"peers compute on the CPU, and nothing is compared with {arguments.device}")
    if arguments.device == "cpu" and arguments.dtype != DTYPES[0]:
        parser.error(f"on a CPU everything is computed in {DTYPES[0]}, got --dtype {arguments.dtype}")
    cache = cache_directory()
    model = arguments.model or demo_model(cache, bar())
    usual = PEER_RUNS if arguments.peers else RUNS
    runs = arguments.runs or (QUICK_RUNS if arguments.quick else usual)
    options = EngineOptions(
        arguments.peers,
        runs,
        cache,
        arguments.timeout,
        quick=arguments.quick,
        calibrate=arguments.calibrate,
        served=arguments.served,
        octet=() if arguments.device == "cpu" else ("--device", arguments.device, "--dtype", arguments.dtype),
        parts=arguments.parts,
    )
    findings = measure_engine(open_model(model, cache), options, say)
    return publish_findings(arguments, findings, TARGETS, *ENGINE)
