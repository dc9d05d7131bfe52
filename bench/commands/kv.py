"""`octet bench kv`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench import hit_rate, kv
from bench.commands.common import FIGURES, QUICK_RUNS, Benches, add_common, command, publish, reporting
from bench.plot import plot_hit_rate
from bench.table import table_by_metric, table_of_spreads
from bench.trace import read_trace

RUNS = 31
ABOUT = f"""\
Time the block pool: allocating and freeing with and without eviction, sharing
a cached prefix, and hashing and matching a prompt, beside bare sha256 over the
same bytes ("limit").

With --trace, replay a recorded trace instead, one request after the other, and
show what share of all its blocks pools of different sizes find, beside an
infinite cache ("limit"). These are counts: one run, no spread.

{FIGURES}"""


def add(benches: Benches) -> None:
    parser = command(benches, "kv", ABOUT, "the block pool: its operations, and hit rates on a trace")
    add_common(parser, "no pool above 10,000 blocks (with --trace, only the largest pool)", RUNS)
    trace = parser.add_argument_group("replaying a trace")
    trace.add_argument("--trace", type=Path, metavar="FILE", help="a trace in the Mooncake format (JSON lines)")
    trace.add_argument(
        "--pool-sizes",
        type=_pool_size,
        nargs="+",
        metavar="N",
        help=f"blocks of 512 tokens (default: {' '.join(map(str, hit_rate.POOL_SIZES))})",
    )
    trace.add_argument("--plot", type=Path, metavar="FILE", help="draw the hit rates as .svg or .png")
    parser.set_defaults(run=reporting(lambda arguments: _run_kv(parser, arguments)))


def _pool_size(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a pool size is a number of blocks, at least 1, got {text!r}")
    return int(text)


def _run_kv(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    if arguments.trace is not None:
        return _run_trace(arguments)
    if arguments.plot is not None or arguments.pool_sizes is not None:
        parser.error("--plot and --pool-sizes need --trace")
    measure, sizes = kv.measure_kv, kv.POOL_SIZES
    records = measure(QUICK_RUNS, sizes[:2]) if arguments.quick else measure(RUNS)
    publish(arguments, records, table_of_spreads(records, kv.kv_targets()))
    return 0


def _run_trace(arguments: argparse.Namespace) -> int:
    requests = read_trace(arguments.trace)
    infinite = hit_rate.replay_infinite(requests)
    replays = hit_rate.replay_pools(requests, _pool_sizes(arguments))
    records = hit_rate.hit_rate_records(infinite, replays)
    publish(arguments, records, table_by_metric(records))
    if arguments.plot is not None:
        plot_hit_rate(arguments.plot, infinite, replays)
    return 0


def _pool_sizes(arguments: argparse.Namespace) -> Sequence[int]:
    if arguments.pool_sizes is not None:
        return sorted(set(arguments.pool_sizes))
    return hit_rate.POOL_SIZES[-1:] if arguments.quick else hit_rate.POOL_SIZES
