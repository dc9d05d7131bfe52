"""`octet specialist`: one process that owns one specialist."""

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import get_args

from octet.arguments import port, seconds
from octet.rpc.bind import LOOPBACK, Tls, check_free, check_signed
from octet.telemetry.endpoint import endpoint_of
from octet.telemetry.logs import add_log_options, log_settings, set_up
from octet.telemetry.options import add_trace_option
from specialist.engines.native.settings import DType, KernelName
from specialist.service.settings import (
    DEFAULT_PORT,
    MOST_PIECE_GAP,
    MetricsSettings,
    ReplicaSettings,
    ServiceSettings,
)

_DESCRIPTION = """\
Serve one model over gRPC (octet.v1.Specialist, health and reflection). Prints
one line when it is warm and ready; SIGTERM and Ctrl-C finish what is running,
a second Ctrl-C does not.

Exit status: 0 after an orderly end, 1 when the engine died, 2 when something
must be put right first (the message says what), 130 after a second Ctrl-C.
"""
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def add_specialist_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "specialist",
        description=_DESCRIPTION,
        help="serve one model over gRPC",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_model(parser.add_argument_group("what it serves"))
    _add_memory(parser.add_argument_group("how much at once"))
    _add_door(parser.add_argument_group("where and to whom"))
    telling = parser.add_argument_group("what it tells")
    add_trace_option(telling)
    add_log_options(telling)
    parser.set_defaults(run=_run)


def _add_model(group: "argparse._ArgumentGroup") -> None:
    usual = ReplicaSettings()
    group.add_argument(
        "--model", type=Path, metavar="PATH", help="a Hugging Face directory or a .gguf file (default: the demo model)"
    )
    group.add_argument("--name", default=None, help="the specialist's name (default: the model's)")
    group.add_argument(
        "--adapter", type=_adapter, action="append", default=[], metavar="NAME=DIR", help="a LoRA adapter; repeatable"
    )
    group.add_argument(
        "--adapter-digest",
        type=_pinned,
        action="append",
        default=[],
        metavar="NAME=SHA256",
        help="an adapter of this name must have this content, or is refused; repeatable",
    )
    group.add_argument("--engine", choices=["native", "sim"], default=usual.engine, help="default: %(default)s")
    group.add_argument(
        "--cost-model",
        type=Path,
        metavar="FILE",
        help="what `octet bench engine --calibrate` wrote: how long the sim engine takes (default: a small model's "
        "rough shape), and what a native replica's forecasts begin with (default: what its first steps take)",
    )
    group.add_argument("--device", default=usual.device, help="of the native engine: cpu, cuda (default: %(default)s)")
    group.add_argument("--dtype", choices=get_args(DType), default=usual.dtype, help="default: %(default)s")
    group.add_argument(
        "--kernel",
        choices=["auto", *get_args(KernelName)],
        default=usual.kernel,
        help="what multiplies matrices on a CPU (default: the fastest, by trial)",
    )
    group.add_argument("--threads", type=_positive, default=usual.threads, metavar="N", help="default: one a CPU")


def _add_memory(group: "argparse._ArgumentGroup") -> None:
    usual = ReplicaSettings()
    pool = group.add_mutually_exclusive_group()
    pool.add_argument("--kv-blocks", type=_positive, metavar="N", help="blocks of the KV pool")
    pool.add_argument(
        "--kv-memory", type=_size, default=usual.kv_bytes, metavar="SIZE", help="memory of the KV pool (default: 1g)"
    )
    group.add_argument("--block-size", type=_positive, default=usual.block_size, metavar="TOKENS")
    group.add_argument("--no-prefix-cache", action="store_true", help="compute every prompt whole")
    group.add_argument("--context", type=_positive, metavar="TOKENS", help="prompt and answer (default: the model's)")
    group.add_argument("--max-running", type=_positive, default=usual.max_running, metavar="N")
    group.add_argument("--max-waiting", type=_positive, default=ServiceSettings().max_waiting, metavar="N")
    group.add_argument(
        "--itl-budget",
        type=seconds,
        default=usual.itl_seconds,
        metavar="SECONDS",
        help="how long a chunk of a prompt may hold up those who decode (default: %(default)s)",
    )
    group.add_argument(
        "--piece-gap",
        type=_piece_gap,
        default=ServiceSettings().piece_gap,
        metavar="SECONDS",
        help="tokens of an answer that come sooner than this after the last are sent together, and the end at once; "
        "0: each as it comes (default: %(default)s)",
    )


def _add_door(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--host", default=LOOPBACK, help="default: %(default)s")
    group.add_argument("--port", type=port, default=DEFAULT_PORT, help="0 for any that is free (default: %(default)s)")
    group.add_argument("--socket", type=Path, metavar="PATH", help="a Unix socket instead of host and port")
    group.add_argument("--tls-certificate", type=Path, metavar="FILE")
    group.add_argument("--tls-key", type=Path, metavar="FILE")
    group.add_argument(
        "--tls-client-ca",
        type=Path,
        metavar="FILE",
        help="serve only whom it has signed for; needed beyond this machine",
    )
    group.add_argument(
        "--insecure", action="store_true", help="serve whoever calls from other machines: something else guards the way"
    )
    group.add_argument(
        "--adapter-root", type=Path, metavar="DIR", help="callers may load adapters below it (default: none)"
    )
    group.add_argument(
        "--metrics-port",
        type=port,
        metavar="PORT",
        help="serve /metrics over HTTP here, for Prometheus; 0 for any (default: not served; the router has it)",
    )
    group.add_argument("--metrics-host", metavar="HOST", help=f"default: {LOOPBACK}")


def _run(arguments: argparse.Namespace) -> int:
    set_up(log_settings(arguments), "%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return _serve(arguments)
    except (OSError, ValueError, RuntimeError, MemoryError) as error:
        print(f"octet specialist: {error}", file=sys.stderr)
        return 2


def _serve(arguments: argparse.Namespace) -> int:
    door = _service_settings(arguments)
    check_signed(door)
    check_free(door)
    if door.metrics is not None:
        check_signed(door.metrics)
        check_free(door.metrics, "--metrics-port")
    settings = _replica_settings(arguments)
    from octet.clock import SystemClock  # what follows loads a framework: not for --help, nor for a mistake
    from specialist.models.progress import bar
    from specialist.service.assemble import assemble
    from specialist.service.context import check_context
    from specialist.service.process import serve

    replica = assemble(settings, SystemClock(), bar(sys.stderr))
    check_context(replica, settings.context)
    return serve(replica, door)


def _replica_settings(arguments: argparse.Namespace) -> ReplicaSettings:
    return ReplicaSettings(
        name=arguments.name or _model_name(arguments),
        engine=arguments.engine,
        model=arguments.model,
        adapters=_adapters(arguments.adapter),
        adapter_digests=dict(arguments.adapter_digest),
        num_blocks=arguments.kv_blocks,
        kv_bytes=arguments.kv_memory,
        block_size=arguments.block_size,
        prefix_cache=not arguments.no_prefix_cache,
        max_running=arguments.max_running,
        context=arguments.context,
        device=arguments.device,
        dtype=arguments.dtype,
        kernel=arguments.kernel,
        threads=arguments.threads,
        itl_seconds=arguments.itl_budget,
        cost_model=arguments.cost_model,
    )


def _adapters(given: Sequence[tuple[str, Path]]) -> dict[str, Path]:
    adapters = dict(given)
    if len(adapters) < len(given):
        twice = next(name for name, count in Counter(name for name, _ in given).items() if count > 1)
        raise ValueError(f"--adapter: the name {twice!r} is given more than once")
    return adapters


def _model_name(arguments: argparse.Namespace) -> str:
    if arguments.model is not None:
        return str(arguments.model.resolve().stem)
    return "sim" if arguments.engine == "sim" else "demo"


def _service_settings(arguments: argparse.Namespace) -> ServiceSettings:
    return ServiceSettings(
        host=arguments.host,
        port=arguments.port,
        socket=arguments.socket,
        tls=_tls(arguments),
        insecure=arguments.insecure,
        adapter_root=arguments.adapter_root,
        adapter_digests=dict(arguments.adapter_digest),
        max_waiting=arguments.max_waiting,
        piece_gap=arguments.piece_gap,
        otlp=endpoint_of(arguments.otlp, "", os.environ),
        metrics=_metrics_settings(arguments),
    )


def _metrics_settings(arguments: argparse.Namespace) -> MetricsSettings | None:
    if arguments.metrics_port is None:
        if arguments.metrics_host is not None:
            raise ValueError("--metrics-host: nothing is served there; give --metrics-port as well")
        return None
    return MetricsSettings(
        host=arguments.metrics_host or LOOPBACK,
        port=arguments.metrics_port,
        tls=_tls(arguments),
        insecure=arguments.insecure,
    )


def _tls(arguments: argparse.Namespace) -> Tls | None:
    given = (arguments.tls_certificate, arguments.tls_key)
    if given == (None, None) and arguments.tls_client_ca is None:
        return None
    if None in given:
        raise ValueError("--tls-certificate and --tls-key belong together")
    return Tls(*given, client_ca=arguments.tls_client_ca)


def _adapter(text: str) -> tuple[str, Path]:
    name, equals, directory = text.partition("=")
    if not name or not equals or not directory:
        raise argparse.ArgumentTypeError(f"an adapter is given as NAME=DIR, got {text!r}")
    return name, Path(directory)


def _pinned(text: str) -> tuple[str, str]:
    name, _, digest = text.partition("=")
    if not name or re.fullmatch("[0-9a-f]{64}", digest) is None:
        raise argparse.ArgumentTypeError(f"a digest is given as NAME=SHA256, 64 hex digits, got {text!r}")
    return name, digest


def _piece_gap(text: str) -> float:
    try:
        gap = float(text)
    except ValueError:
        gap = inf
    if not 0 <= gap <= MOST_PIECE_GAP:
        raise argparse.ArgumentTypeError(f"seconds from 0 to {MOST_PIECE_GAP:g} are needed, got {text!r}")
    return gap


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a number of at least 1 is needed, got {text!r}")
    return int(text)


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]+)([kmg]?)", text.lower())
    if found is None or int(found[1]) < 1:
        raise argparse.ArgumentTypeError(f"a size is given like 512m or 2g, got {text!r}")
    return int(found[1]) * _SIZES[found[2]]
