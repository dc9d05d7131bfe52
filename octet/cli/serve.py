"""`octet serve`: the router and all its specialists, on this machine."""

import argparse
import itertools
import json
import os
import re
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import octet
from octet.cli import arguments as cli
from octet.cli.arguments import Commands, add_option, parse_port, parse_seconds, started_as
from octet.cli.check import find_warnings, load_ensemble
from octet.client.base import DEFAULT_ADDRESS
from octet.client.channel import API_KEY_VARIABLE
from octet.config.ensemble import Ensemble, HttpConfig, SpecialistConfig
from octet.config.yaml_tree import ConfigInvalid
from octet.rpc import listener as listeners
from octet.rpc.certificates import Tls
from octet.rpc.listener import BindRefused, Endpoint, format_address
from octet.supervisor.console import JsonConsole, NonBlockingWriter, open_console
from octet.supervisor.placement import ACCEPTED_CONFIG, ReplicaPlacement, place_replicas, runtime_folder
from octet.supervisor.process import EXIT_USAGE, ProcessSpec, call_in_fork
from octet.supervisor.signals import signal_handlers
from octet.supervisor.supervisor import Supervisor, SupervisorTimeouts
from octet.supervisor.weights import WantedBySpecialist, wanted_from_json, wanted_to_json
from octet.supervisor.weights_processes import MakeReplica, WeightsProcesses
from octet.telemetry.logs import LogSettings, add_log_options, log_settings
from octet.telemetry.trace_export import add_trace_option, resolve_otlp_endpoint
from octet.terminal import pluralize

PrepareReplicas = Callable[[Sequence[ReplicaPlacement]], tuple[Sequence[ProcessSpec], MakeReplica]]
"""Loads what replicas share. Returns their processes, and a function that makes replicas of other weights. Raises
OSError, ValueError, RuntimeError or MemoryError."""

_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_MAX_PORT_TRIES = 100
_MAX_PROMPT_CHARS = 80  # of an example in the ready message
_DESCRIPTION = """\
Serve an ensemble: one router and its specialists, each in its own process, which
is restarted when it dies. When all are ready, prints the addresses and a command
to try. SIGTERM and Ctrl-C finish running requests first; a second Ctrl-C stops at
once. SIGHUP reloads the configuration.

Exit status: 0 after a clean shutdown, 1 when a process had to be killed, 2 when
the configuration or an option is invalid, 130 after a second Ctrl-C.
"""
_MEMORY = "memory"  # the store that forgets
_READY_ON = re.compile(r" ready on (\S+)")
_ROUTER = "router"
_ROUTER_PROGRAM = "import sys; sys.path.append(sys.argv.pop(1)); from octet.cli import main; sys.exit(main())"
"""Run with `python -P`, so that the working directory is not on the path. The argument is the folder from which this
`octet` was imported. It is the last entry of the path, so that it shadows nothing."""


def add_serve_command(commands: Commands, prepare_replicas: PrepareReplicas | None = None) -> None:
    if prepare_replicas is None:
        from specialist.server.roles import replica_roles

        prepare_replicas = replica_roles
    prepare = prepare_replicas
    about = "serve an ensemble: a router and its specialists"
    parser = cli.add_parser(commands, "serve", about, description=_DESCRIPTION)
    defaults, option = SupervisorTimeouts(), partial(add_option, parser)
    option("file", "FILE", "configuration file (default: eight C++ specialists)", Path, nargs="?")
    option("--port", "PORT", "gRPC port instead of the configured one; 0 for any free port", parse_port)
    cli.add_http_options(parser, "HTTP port instead of the configured one; enables HTTP; 0 for any free port")
    cli.add_access_options(parser)
    about = "kill and restart a process that does not respond for this long"
    about += f"; at least {defaults.start:g} s while it starts (default: %(default)g)"
    option("--hang", "SECONDS", about, parse_seconds, default=defaults.hang)
    about = "time to finish running requests, first for the router, then for the specialists (default: %(default)g)"
    option("--drain", "SECONDS", about, parse_seconds, default=defaults.drain)
    cli.add_flag(parser, "--json", "print the ready message as JSON")
    add_trace_option(parser, "telemetry.otlp in the configuration")
    add_log_options(parser)
    parser.set_defaults(run=lambda arguments: _run(arguments, prepare))


def _run(arguments: argparse.Namespace, prepare_replicas: PrepareReplicas) -> int:
    started = time.monotonic()
    try:
        ensemble = _with_ports(load_ensemble(arguments.file), arguments)
        for warning in find_warnings(ensemble):
            print(f"octet serve: warning: {warning}", file=sys.stderr)
        _check_listeners(ensemble, arguments.keys, insecure=arguments.insecure)
        # Until the supervisor handles signals, exit by an exception, so that the runtime folder is removed.
        with signal_handlers((signal.SIGTERM, signal.SIGHUP), lambda *_: sys.exit(0)), runtime_folder() as folder:
            logs = log_settings(arguments)
            otlp = resolve_otlp_endpoint(arguments.otlp, ensemble.telemetry.otlp, os.environ)
            placements = place_replicas(ensemble, folder, otlp, logs)
            options = [] if arguments.keys is None else ["--keys", str(arguments.keys)]
            options += [*(["--insecure"] if arguments.insecure else []), *logs.arguments()]
            options += ["--otlp", otlp] if otlp else []
            weights = WeightsProcesses(folder, placements, _remembered_weights(ensemble))
            shared, make = prepare_replicas(weights.configured())
            options += ["--weights", str(folder)]
            router = _router_process(ensemble, placements, folder / ACCEPTED_CONFIG, options)
            specs = [*weights.processes(shared, make), router]
            return _supervise(specs, weights.turn, ensemble, arguments, started, logs)
    except ConfigInvalid as invalid:
        print(invalid, file=sys.stderr)
    except (OSError, ValueError, RuntimeError, MemoryError) as error:
        print(f"octet serve: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return EXIT_USAGE


def _remembered_weights(ensemble: Ensemble) -> WantedBySpecialist:
    """Return the weights with which specialists start because they were refreshed, and tell the operator. The store is
    read in a fork, because its client may start threads."""

    def read() -> dict[str, Any] | str:
        from router.control.weights import remembered_weights
        from router.store.connection import StoreConnectionLost

        try:
            return wanted_to_json(remembered_weights(ensemble))
        except (StoreConnectionLost, ValueError) as error:
            return str(error)

    if ensemble.store.url == _MEMORY or not any(_can_refresh(each) for each in ensemble.specialists):
        return {}
    found = call_in_fork(read)
    if isinstance(found, str):
        print(f"octet serve: warning: starting the configured weights, because {found}", file=sys.stderr)
        return {}
    remembered = wanted_from_json(found)
    for name, weights in remembered.items():
        models = ", ".join(each.model for each in weights)
        print(f"octet serve: {name} was refreshed: starting {models} (octet lanes {name})", file=sys.stderr)
    return remembered


def _can_refresh(specialist: SpecialistConfig) -> bool:
    return specialist.engine == "native" and not specialist.addresses


def _with_ports(ensemble: Ensemble, arguments: argparse.Namespace) -> Ensemble:
    """Apply the port options. Replace port 0 with a free port, so that a restarted router listens on the same port."""
    router = ensemble.router if arguments.port is None else replace(ensemble.router, port=arguments.port)
    http = router.override_http(arguments.http_port, disabled=arguments.no_http).http_listener
    if http is not None and http.port == router.port != 0:
        raise ValueError(f"gRPC and HTTP cannot both listen on port {http.port}: change --port or --http-port")
    if router.port == 0:
        router = replace(router, port=find_free_port(router.host, "--port", [http.port] if http else []))
    if http is not None and http.port == 0:
        http = replace(http, port=find_free_port(http.host, "--http-port", [router.port]))
    return replace(ensemble, router=replace(router, http=http or HttpConfig(enabled=False)))


def find_free_port(host: str, option: str, taken: Container[int]) -> int:
    """Return a free port that is not `taken`, if possible one that stays free while its server restarts."""
    ports = [port for port in lasting_ports() if port not in taken]
    for port in secrets.SystemRandom().sample(ports, min(len(ports), _MAX_PORT_TRIES)):
        with suppress(BindRefused), listeners.bind_socket(Endpoint(host, port), option):
            return port
    with listeners.bind_socket(Endpoint(host), option) as probe:
        port = int(probe.getsockname()[1])
        return find_free_port(host, option, taken) if port in taken else port


def lasting_ports() -> range:
    """Return ports that the kernel assigns to no connection: those below or above its ephemeral ports."""
    low, high = map(int, _EPHEMERAL_PORTS.read_text().split()) if _EPHEMERAL_PORTS.exists() else (30_000, 65_535)
    return max(range(15_000, low), range(high + 1, 65_536), key=len)


def _check_listeners(ensemble: Ensemble, keys: Path | None, *, insecure: bool) -> None:
    """Check the router's addresses, TLS and API keys here, before models are loaded. Raises BindRefused."""
    router, tls = ensemble.router, Tls.from_config(ensemble.router.tls)
    given = [("router.host", cli.PORT_SETTING, Endpoint(router.host, router.port, tls=tls, insecure=insecure))]
    if (http := router.http_listener) is not None:
        endpoint = Endpoint(http.host, http.port, tls=tls, insecure=insecure)
        given.append(("router.http.host", cli.HTTP_PORT_SETTING, endpoint))
    has_keys = _has_keys(ensemble, keys)
    for key, option, listener in given:
        try:
            listeners.check_tls_configured(listener, "router.tls in the configuration")
            listeners.check_keys_configured(listener, has_keys=has_keys)
        except BindRefused as refused:
            raise BindRefused(f"{key} {refused}") from None
        listeners.check_address_free(listener, option)


def _has_keys(ensemble: Ensemble, keys: Path | None) -> bool:
    return bool(keys or os.environ.get(cli.KEYS_VARIABLE) or ensemble.router.keys)


def _router_process(
    ensemble: Ensemble, placements: Sequence[ReplicaPlacement], accepted: Path, options: Sequence[str]
) -> ProcessSpec:
    """Return how to run the router. It is a separate program, not a fork: it needs no memory of this process."""
    package = str(Path(octet.__file__).parents[1])
    command = [sys.executable, "-P", "-c", _ROUTER_PROGRAM, package, "router", "--port", str(ensemble.router.port)]
    listener = None
    if (http := ensemble.router.http_listener) is None:
        command += ["--no-http"]
    else:
        command += ["--http-port", str(http.port)]
        listener = listeners.bind_socket(Endpoint(http.host, http.port), cli.HTTP_PORT_SETTING).detach()
    if ensemble.source is not None:
        command += ["--config", str(ensemble.source), "--accepted", str(accepted)]
    for each in placements:
        command += ["--replica", f"{each.specialist.name}={each.address}"]
    command += options
    ready = " ready on "
    return ProcessSpec(_ROUTER, command=tuple(command), stage=1, ready_words=ready, reloads=True, listener=listener)


def _supervise(
    specs: Sequence[ProcessSpec],
    revise: Callable[[Supervisor], None],
    ensemble: Ensemble,
    arguments: argparse.Namespace,
    started: float,
    logs: LogSettings,
) -> int:
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # gRPC starts in the children, never here
    out, log = NonBlockingWriter(sys.stdout.fileno()), NonBlockingWriter(sys.stderr.fileno())
    start_timeout = max(arguments.hang, SupervisorTimeouts().start)
    timeouts = SupervisorTimeouts(hang=arguments.hang, start=start_timeout, drain=arguments.drain)

    def print_ready(supervisor: Supervisor) -> None:
        ready = _ready_summary(ensemble, supervisor, time.monotonic() - started, _has_keys(ensemble, arguments.keys))
        lines = [json.dumps(ready)] if arguments.json else [*_process_table(ensemble, supervisor), *_ready_lines(ready)]
        out.write("".join(f"{line}\n" for line in lines))

    console = JsonConsole(log, time.time) if logs.format == "json" else open_console(log, [spec.name for spec in specs])
    return Supervisor(specs, console, [out, log], timeouts, revise=revise).run(print_ready)


def _process_table(ensemble: Ensemble, supervisor: Supervisor) -> Iterator[str]:
    """Yield a row for each replica on this machine, and one for each specialist on other machines."""
    rows = [[each.name, *each.ready_text.split("\t")] for each in supervisor.processes if each.name != _ROUTER]
    rows += [[each.name, "remote", ", ".join(each.addresses)] for each in ensemble.specialists if each.addresses]
    widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    for row in rows:
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)).rstrip()


def _ready_summary(ensemble: Ensemble, supervisor: Supervisor, seconds: float, has_keys: bool) -> dict[str, Any]:
    router, http = ensemble.router, ensemble.router.http_listener
    found = _READY_ON.search(next((each.ready_text for each in supervisor.processes if each.name == _ROUTER), ""))
    scheme = "http" if router.tls is None else "https"
    address = found[1] if found else format_address(Endpoint(router.host, router.port))
    url = None if http is None else f"{scheme}://{format_address(Endpoint(http.host, http.port))}"
    return {
        "address": address,
        "http": url,
        "dashboard": None if url is None else f"{url}/dashboard",
        "try": _example_command(ensemble, address, has_keys=has_keys),
        "specialists": list(ensemble.names),
        "processes": len(supervisor.pids),
        "memory_bytes": proportional_memory([os.getpid()]),
        "seconds": round(seconds, 3),
    }


def _ready_lines(ready: dict[str, Any]) -> Iterator[str]:
    memory_bytes, specialists = ready["memory_bytes"], pluralize(len(ready["specialists"]), "specialist")
    memory = "" if memory_bytes is None else f", {memory_bytes >> 20:,} MiB"
    http, disabled = ("", ", HTTP disabled") if ready["http"] is None else (f" and {ready['http']}", "")
    about = f"{specialists}, {ready['processes']} processes{memory}{disabled}"
    yield f"octet ready on {ready['address']}{http} ({about}) after {ready['seconds']:.1f} s"
    if ready["dashboard"] is not None:
        yield f"  dashboard: {ready['dashboard']}"
    yield f"  try: {ready['try']}"


def _example_command(ensemble: Ensemble, address: str, *, has_keys: bool) -> str:
    """Return a command that gets an answer, as a shell takes it. What only the operator has is in capitals."""
    examples = (text for each in ensemble.specialists for text in each.examples)
    prompt = next((text for text in examples if len(text) <= _MAX_PROMPT_CHARS and text.isprintable()), None)
    words = [*started_as(), "generate", "hello" if prompt is None else prompt]
    if prompt is None and ensemble.default_name is None:
        words += ["--force", ensemble.names[0]]
    if address != DEFAULT_ADDRESS:
        words += ["--address", address]
    words += [] if ensemble.router.tls is None else ["--tls-ca", "CA_FILE"]
    return (f"{API_KEY_VARIABLE}=KEY " if has_keys else "") + shlex.join(words)


def proportional_memory(pids: Sequence[int], proc: Path = Path("/proc")) -> int | None:
    """Return the bytes used by these processes and their descendants, shared pages counted once; None if unknown."""
    parents = {}
    for stat in proc.glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # the process has exited
            continue
    family = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    try:
        rollups = [(proc / str(pid) / "smaps_rollup").read_text() for pid in family]
    except OSError:
        return None
    return sum(int(size) * 1024 for text in rollups for size in re.findall(r"^Pss:\s+(\d+)", text, re.MULTILINE))
