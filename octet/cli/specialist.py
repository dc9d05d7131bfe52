"""`octet specialist`: one process that serves one model."""

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import get_args

from octet.cli import arguments as cli
from octet.cli.arguments import Commands, add_flag, add_option, parse_port, parse_positive, parse_seconds
from octet.config.annotations import parse_hub_reference
from octet.config.values import parse_number, parse_size
from octet.limits import MAX_DRAFT_WINDOW
from octet.rpc.certificates import Tls, add_tls_options
from octet.rpc.listener import LOOPBACK, Endpoint, check_address_free, check_client_ca_configured
from octet.telemetry.logs import add_log_options, log_settings, set_up_logging
from octet.telemetry.trace_export import add_trace_option, resolve_otlp_endpoint
from specialist.engines.native.settings import DType, KernelName
from specialist.models.hub import find_files, find_model
from specialist.models.progress import bar
from specialist.server.settings import DEFAULT_PORT, MAX_PIECE_GAP, ReplicaSettings, ServiceSettings

_DESCRIPTION = """\
Serve one model over gRPC (octet.v1.Specialist, health and reflection). Prints
one line when it is ready. SIGTERM and Ctrl-C finish running requests first; a
second Ctrl-C stops at once.

Exit status: 0 after a clean shutdown, 1 when the engine died, 2 when an option
or the model is invalid, 130 after a second Ctrl-C.
"""
_parse_window = cli.integer_type(0, MAX_DRAFT_WINDOW, f"must be a whole number in [0, {MAX_DRAFT_WINDOW}]")
_parse_gap = cli.number_type(lambda gap: 0 <= gap <= MAX_PIECE_GAP, f"must be in [0, {MAX_PIECE_GAP:g}] seconds")


def add_specialist_command(commands: Commands) -> None:
    parser = cli.add_parser(commands, "specialist", "serve one model over gRPC", description=_DESCRIPTION)
    _add_model_options(parser.add_argument_group("model"))
    _add_capacity_options(parser.add_argument_group("capacity"))
    _add_listener_options(parser.add_argument_group("listening"))
    telemetry = parser.add_argument_group("telemetry")
    add_trace_option(telemetry)
    add_log_options(telemetry)
    service = ServiceSettings()
    parser.set_defaults(max_waiting=service.max_waiting, piece_gap=service.piece_gap)
    parser.set_defaults(run=_run, **asdict(ReplicaSettings()) | {"name": None})


def _add_model_options(group: "argparse._ArgumentGroup") -> None:
    option, listed = partial(add_option, group), {"action": "append", "default": []}
    about = "a Hugging Face directory, a .gguf file, or hf:ORG/NAME of the hub (default: the demo model)"
    option("--model", "PATH", about)
    option("--name", "NAME", "name of the specialist (default: the model's name)")
    option("--adapter", "NAME=DIR", "a LoRA adapter; repeatable", _parse_adapter, **listed)
    about = "required digest of the adapter with this name; repeatable"
    option("--adapter-digest", "NAME=SHA256", about, _parse_digest, **listed)
    group.add_argument("--engine", choices=["native", "sim"], help="default: %(default)s")
    about = (
        "step costs from `octet bench engine --calibrate`: the speed of the sim engine (default: that of a small "
        "model), or the first forecasts of the native engine (default: measured from its first steps)"
    )
    option("--cost-model", "FILE", about, Path)
    option("--device", "DEVICE", "device of the native engine: cpu or cuda (default: %(default)s)")
    group.add_argument("--dtype", choices=get_args(DType), help="default: %(default)s")
    kernels = ["auto", *get_args(KernelName)]
    group.add_argument("--kernel", choices=kernels, help="matrix kernel on a CPU (default: the fastest in a trial)")
    option("--threads", "N", "default: one for each CPU", parse_positive)


def _add_capacity_options(group: "argparse._ArgumentGroup") -> None:
    option, pool = partial(add_option, group), partial(add_option, group.add_mutually_exclusive_group())
    pool("--kv-blocks", "N", "number of blocks in the KV pool", parse_positive, dest="num_blocks")
    pool("--kv-memory", "SIZE", "size of the KV pool (default on a CPU: 1g)", _parse_size, dest="kv_bytes")
    about = "share of a GPU's memory for this replica: the KV pool gets the rest of it (default: %(default)s)"
    pool("--memory-fraction", "SHARE", about, _parse_share)
    about = "memory for the states of recurrent layers, of running requests and copies (default: 1g)"
    option("--state-memory", "SIZE", about, _parse_size, dest="state_bytes")
    about = "host memory for KV blocks that the prefix cache evicts, so that they can come back (default: none)"
    option("--spill-memory", "SIZE", about, _parse_size, dest="spill_bytes")
    option("--block-size", "TOKENS", parse=parse_positive)
    about = "compute every prompt in full"
    group.add_argument("--no-prefix-cache", dest="prefix_cache", action="store_false", help=about)
    option("--context", "TOKENS", "limit of prompt and answer together (default: the model's limit)", parse_positive)
    option("--max-running", "N", parse=parse_positive)
    option("--max-waiting", "N", parse=parse_positive)
    about = f"most tokens that a step guesses ahead, 0 to {MAX_DRAFT_WINDOW} (default: %(default)s)"
    option("--draft-window", "N", about, _parse_window)
    about = "guess also from other answers of the same lane, adapters and tenant (at most 32 MiB of them are kept)"
    group.add_argument("--draft-lane", action="store_true", help=about)
    option("--draft-model", "PATH", "a smaller model with the same vocabulary that guesses, too; named like --model")
    about = "longest time that one prompt chunk may delay decoding requests (default: %(default)s)"
    option("--itl-budget", "SECONDS", about, parse_seconds, dest="itl_seconds")
    about = "collect the tokens of an answer for up to this long and send them together; 0 sends each at once"
    option("--piece-gap", "SECONDS", f"{about} (default: %(default)s)", _parse_gap)


def _add_listener_options(group: "argparse._ArgumentGroup") -> None:
    option = partial(add_option, group)
    option("--host", "HOST", "default: %(default)s", default=LOOPBACK)
    option("--port", "PORT", "0 for any free port (default: %(default)s)", parse_port, default=DEFAULT_PORT)
    option("--socket", "PATH", "a Unix socket instead of host and port", Path)
    add_tls_options(group, "require client certificates signed by this CA; needed to accept other machines")
    add_flag(group, "--insecure", "accept any caller from other machines (trusted networks only)")
    option("--adapter-root", "DIR", "directory from which callers may load adapters (default: none)", Path)
    about = "serve /metrics for Prometheus on this port; 0 for any free port (default: only through the router)"
    option("--metrics-port", "PORT", about, parse_port)
    option("--metrics-host", "HOST", f"default: {LOOPBACK}")


def _run(arguments: argparse.Namespace) -> int:
    set_up_logging(log_settings(arguments), "%(asctime)s %(levelname)s %(name)s: %(message)s")
    return cli.report_errors("specialist", lambda: _serve(arguments))


def _serve(arguments: argparse.Namespace) -> int:
    listener = _service_settings(arguments)
    check_client_ca_configured(listener)
    check_address_free(listener)
    if listener.metrics is not None:
        check_client_ca_configured(listener.metrics)
        check_address_free(listener.metrics, "--metrics-port")
    settings = _replica_settings(arguments)
    from octet.clock import SystemClock  # imported late, because the modules below load a framework
    from specialist.server.replica import assemble_replica, check_context
    from specialist.server.server import serve

    replica = assemble_replica(settings, SystemClock(), bar(sys.stderr))
    check_context(replica, settings.context)
    return serve(replica, listener)


def _replica_settings(arguments: argparse.Namespace) -> ReplicaSettings:
    for name in ("draft_lane", "draft_model"):
        if getattr(arguments, name) and not arguments.draft_window:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} has no effect without --draft-window: add it, for example --draft-window 16")
    if arguments.draft_model is not None and arguments.engine != "native":
        raise ValueError(f"--draft-model needs the native engine: the {arguments.engine} engine has no weights")
    name = "sim" if arguments.engine == "sim" else "demo"
    model, draft, adapters = None, None, _unique_adapters(arguments.adapter)
    if arguments.engine == "native":
        progress = bar(sys.stderr)
        model = None if arguments.model is None else find_files(arguments.model, "model", progress)
        draft = None if arguments.draft_model is None else find_model(arguments.draft_model, progress)
        adapters = {name: find_files(str(path), "adapter", progress) for name, path in adapters.items()}
    if arguments.model is not None:
        hub = parse_hub_reference(arguments.model)
        name = Path(arguments.model).resolve().stem if hub is None else Path(hub.file or hub.repo).stem
    given = {each.name: getattr(arguments, each.name) for each in fields(ReplicaSettings)}
    given |= {"name": arguments.name or name, "model": model, "draft_model": draft}
    return ReplicaSettings(**given | {"adapters": adapters, "adapter_digests": dict(arguments.adapter_digest)})


def _unique_adapters(given: Sequence[tuple[str, Path]]) -> dict[str, Path]:
    adapters = dict(given)
    if len(adapters) < len(given):
        twice = next(name for name, count in Counter(name for name, _ in given).items() if count > 1)
        raise ValueError(f"--adapter: the name {twice!r} is given more than once")
    return adapters


def _service_settings(arguments: argparse.Namespace) -> ServiceSettings:
    if arguments.metrics_port is None and arguments.metrics_host is not None:
        raise ValueError("--metrics-host has no effect while metrics are not served: add --metrics-port")
    tls, metrics = Tls.from_options(arguments), None
    if arguments.metrics_port is not None:
        host = arguments.metrics_host or LOOPBACK
        metrics = Endpoint(host=host, port=arguments.metrics_port, tls=tls, insecure=arguments.insecure)
    same = ("host", "port", "socket", "insecure", "adapter_root", "max_waiting", "piece_gap")
    return ServiceSettings(
        tls=tls,
        adapter_digests=dict(arguments.adapter_digest),
        otlp=resolve_otlp_endpoint(arguments.otlp, "", os.environ),
        metrics=metrics,
        **{name: getattr(arguments, name) for name in same},
    )


def _parse_adapter(text: str) -> tuple[str, Path]:
    name, directory = cli.parse_pair(text, "an adapter must be given as NAME=DIR")
    return name, Path(directory)


def _parse_digest(text: str) -> tuple[str, str]:
    name, _, digest = text.partition("=")
    if not name or re.fullmatch("[0-9a-f]{64}", digest) is None:
        raise argparse.ArgumentTypeError(f"a digest must be NAME=SHA256 (64 lowercase hex digits), got {text!r}")
    return name, digest


def _parse_share(text: str) -> float:
    share = parse_number(text)
    if share is None or not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"a share must be more than 0 and at most 1, got {text!r}")
    return share


def _parse_size(text: str) -> int:
    size = parse_size(text)
    if size is None or size < 1:
        raise argparse.ArgumentTypeError(f"a size must be at least 1 byte (such as 512m or 2g), got {text!r}")
    return size
