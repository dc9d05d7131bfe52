"""`octet bench engine`."""

import argparse
from pathlib import Path
from typing import get_args

from bench.commands.common import QUICK_RUNS, add_bench, add_model, names, publish_findings, say
from octet.cli.arguments import Commands, parse_positive
from specialist.engines.native.settings import DType

RUNS, PEER_RUNS = 9, 5
DTYPES: tuple[str, ...] = get_args(DType)
ABOUT = """\
Time the engine on a real model: decoding of 1, 4, 16 and 32 sequences at once,
prefill, time to the first token (TTFT) and between tokens (ITL), and a warm
prefix against a cold one, compared with the bare linear layers and with reading
the weights at memory bandwidth ("limit"). This is the part "decode" (--parts).

The part "open-loop" sends requests at 30, 60 and 90 % of the capacity that is
measured first, also over gRPC. It reports TTFT, ITL and goodput: answers with
the first token within a second and the others within 100 ms on average. In the
part "adapters", 16 sequences share 1, 4 and 16 adapters, with long turns
("octet") and with a turn after every step ("octet interleaved"). Of the peers,
only vllm runs these parts, and "adapters" only if it is the only part.

With --device cuda, Octet's own engine runs on a GPU: 1, 16, 32 and 128
sequences with longer prompts and answers, prefill of 8 x 2,048 tokens, and in
the part "adapters" none, 1, 4 and 16 adapters, whose sequences share every
step. Of the peers, only vllm runs there, in its own process on the same card,
in turns with Octet. It is imported from the folder that --peer-path names, by
the same Python and with its PyTorch. It runs with FlashAttention 3 (on Hopper),
full CUDA graphs and asynchronous scheduling, and makes an answer only at its
end, as its "generate" does; the times of tokens are taken where its core hands
them over. Octet gets 0.3 of the card, vLLM 0.35.

"decode" is the rate while all sequences decode, from token times of both alike;
"throughput" counts from the first prompt to the last token. --model shape:0.6b
and shape:8b are random weights with the shapes of Qwen3-0.6B and Llama 3.1 8B,
written once below $OCTET_CACHE.

With --peers on the CPU, other engines do the same in the same rounds: hf
(transformers), llamacpp (llama-cpp-python), vllm (vLLM's CPU build). Each is
installed into its own environment below $OCTET_CACHE (default: ~/.cache/octet),
tried with different settings, and measured with the fastest. Waiting systems
are stopped. A peer that cannot be installed, dies or hangs is reported and left
out; the exit code is then 1.
"""


def add(benches: Commands) -> None:
    summary = "measure the engine on a real model, optionally against other engines"
    parser = add_bench(benches, "engine", ABOUT, summary, "small prompts and answers", RUNS, _run_engine)
    add_model(parser)
    folder = "on cuda: a folder with a package vllm, ready to import"
    parser.add_argument("--peer-path", type=Path, metavar="FOLDER", help=folder)
    parser.add_argument("--peers", type=names, default=(), metavar="NAME,...", help="hf, llamacpp, vllm")
    parts = "decode, open-loop, adapters (default: decode)"
    parser.add_argument("--parts", type=names, default=("decode",), metavar="PART,...", help=parts)
    parser.add_argument("--device", default="cpu", help="device of Octet's engine: cpu or cuda (default: cpu)")
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help=f"data type on cuda (default: {DTYPES[0]})")
    parser.add_argument(
        "--served",
        action="store_true",
        help="measure Octet over gRPC as well: with requests on one call, and with a call each",
    )
    rounds = f"measured rounds (default: {RUNS}, with --peers {PEER_RUNS})"
    parser.add_argument("--runs", type=parse_positive, metavar="N", help=rounds)
    timeout = "seconds that an engine may take to answer"
    parser.add_argument("--timeout", type=parse_positive, default=600, metavar="S", help=timeout)
    parser.add_argument("--calibrate", type=Path, metavar="FILE", help="write the step costs, for the simulation")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot each part by its load, as .svg or .png")


def _run_engine(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from bench.engine import PARTS, EngineOptions, measure_engine
    from bench.engine_decode import TARGETS, gpu_targets, open_model
    from bench.plots import ENGINE
    from specialist.models.demo import cache_directory, demo_model
    from specialist.models.progress import bar

    if not arguments.parts or not set(arguments.parts) <= set(PARTS):
        parser.error(f"--parts must name {' or '.join(PARTS)}, got {','.join(arguments.parts)!r}")
    if arguments.peers and arguments.device != "cpu" and arguments.peer_path is None:
        parser.error(f"on {arguments.device}, --peers need --peer-path: the folder from which they are imported")
    if arguments.peer_path is not None and arguments.device == "cpu":
        parser.error("--peer-path needs --device cuda: on a CPU, each peer is installed")
    if arguments.device == "cpu" and arguments.dtype != DTYPES[0]:
        parser.error(f"on a CPU everything is computed in {DTYPES[0]}, got --dtype {arguments.dtype}")
    cache = cache_directory()
    model = _shaped_model(parser, str(arguments.model), cache) or arguments.model or demo_model(cache, bar())
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
        on_gpu=arguments.device != "cpu",
        dtype=arguments.dtype,
        peer_path=arguments.peer_path,
    )
    findings = measure_engine(open_model(model, cache), options, say)
    targets = gpu_targets(model) if options.on_gpu else TARGETS
    return publish_findings(arguments, findings, targets, *ENGINE)


def _shaped_model(parser: argparse.ArgumentParser, name: str, cache: Path) -> Path | None:
    """Return the directory of a model of random weights; None if `name` names no such model."""
    from bench.random_models import SHAPE, SHAPES, random_model

    if not name.startswith(SHAPE):
        return None
    shape = name.removeprefix(SHAPE)
    if shape not in SHAPES:
        parser.error(f"--model {name}: unknown shape (known: {', '.join(SHAPE + each for each in SHAPES)})")
    return random_model(shape, cache)
