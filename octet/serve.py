"""`octet serve`: the router and all its specialists, on this machine."""

import argparse
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from octet.arguments import port, seconds
from octet.config.ensemble import Ensemble, HttpConfig
from octet.config.problem import ConfigInvalid
from octet.places import Place, places_of
from octet.rpc.bind import Tls, address_of, check_free, check_keyed, check_reach
from octet.rpc.bind_refused import BindRefused
from octet.runtime_folder import ACCEPTED, runtime_folder
from octet.supervise.json_screen import JsonScreen
from octet.supervise.memory import pss_of
from octet.supervise.outlet import Outlet
from octet.supervise.role import USAGE, Role
from octet.supervise.screen import screen_on
from octet.supervise.supervisor import Care, Supervisor
from octet.telemetry.endpoint import endpoint_of
from octet.telemetry.logs import LogSettings, add_log_options, log_settings
from octet.telemetry.options import add_trace_option

MakeRoles = Callable[[Sequence[Place]], Sequence[Role]]
"""Prepares what replicas share, and says how each is started. Raises OSError, ValueError, RuntimeError, MemoryError."""

_DESCRIPTION = """\
Serve an ensemble: one router and its specialists, each a process of its own
that is restarted when it dies. Prints one line when all of them are warm and
ready. SIGTERM and Ctrl-C finish what is running, a second Ctrl-C does not;
SIGHUP has the configuration read again.

Exit status: 0 after an orderly end, 1 when a process had to be killed for it,
2 when something must be put right first (the message says what), 130 after a
second Ctrl-C.
"""
_READY_ON = re.compile(r" ready on (\S+)")
_ROUTER = "router"
_KEYS = "OCTET_KEYS"


@dataclass(frozen=True, slots=True)
class _Door:
    """The router's, to see whether it can be had before anything is loaded."""

    host: str
    port: int
    socket: Path | None = None
    tls: Tls | None = None
    insecure: bool = False


def add_serve_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", make_roles: MakeRoles) -> None:
    parser = commands.add_parser(
        "serve",
        description=_DESCRIPTION,
        help="serve an ensemble: a router and its specialists",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    usual = Care()
    parser.add_argument("file", nargs="?", type=Path, help="of the ensemble (default: eight C++ specialists)")
    parser.add_argument("--port", type=port, help="of the router, instead of the configured one; 0 for any")
    parser.add_argument(
        "--http-port",
        type=port,
        metavar="PORT",
        help="of the router's HTTP, instead of the configured one, or where none is configured; 0 for any",
    )
    parser.add_argument(
        "--keys",
        type=Path,
        metavar="FILE",
        help=f"serve only who shows one of these (octet keys makes them); default: {_KEYS}, or the configuration's",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="serve other machines without TLS, or without keys: something else guards the way",
    )
    parser.add_argument(
        "--hang",
        type=seconds,
        default=usual.hang,
        metavar="SECONDS",
        help=f"a process silent for so long is killed and restarted; at least {usual.start:g} while it starts "
        "(default: %(default)g)",
    )
    parser.add_argument(
        "--drain",
        type=seconds,
        default=usual.drain,
        metavar="SECONDS",
        help="to finish what is running, for the router and then for the specialists (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="what it says when it is ready as one line of JSON")
    add_trace_option(parser, "telemetry.otlp in the configuration")
    add_log_options(parser)
    parser.set_defaults(run=lambda arguments: _run(arguments, make_roles))


def _run(arguments: argparse.Namespace, make_roles: MakeRoles) -> int:
    began = time.monotonic()
    care = Care(hang=arguments.hang, start=max(arguments.hang, Care().start), drain=arguments.drain)
    try:
        ensemble = _with_ports(_ensemble(arguments.file), arguments.port, arguments.http_port)
        _check_door(ensemble, arguments.keys, insecure=arguments.insecure)
        with _ending_in_order(), runtime_folder() as folder:
            logs, otlp = log_settings(arguments), endpoint_of(arguments.otlp, ensemble.telemetry.otlp, os.environ)
            places = places_of(ensemble, folder, otlp, logs)
            router = _router(ensemble, places, folder / ACCEPTED, arguments.keys, insecure=arguments.insecure)
            router = replace(router, command=(*router.command, *logs.arguments(), *_traces(otlp)))
            roles = [*make_roles(places), router]
            return _supervise(roles, ensemble, care, began, logs, as_json=arguments.json)
    except ConfigInvalid as invalid:
        print(invalid, file=sys.stderr)
    except (OSError, ValueError, RuntimeError, MemoryError) as error:
        print(f"octet serve: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return USAGE


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Until there is a supervisor to hear of it: whoever is told to end leaves nothing behind."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(0)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ensemble(file: Path | None) -> Ensemble:
    """Raises ConfigInvalid."""
    if file is None:
        from octet.config.default import default_ensemble

        return default_ensemble()
    from octet.config.read import read_ensemble

    return read_ensemble(file, files=True)


def _with_ports(ensemble: Ensemble, asked: int | None, http_asked: int | None) -> Ensemble:
    """Where any will do, one is chosen here: a router that is restarted comes back to it."""
    router = ensemble.router if asked is None else replace(ensemble.router, port=asked)
    if router.port == 0:
        router = replace(router, port=_free_port(router.host))
    return replace(ensemble, router=replace(router, http=_http(router.http, http_asked)))


def _http(http: HttpConfig | None, asked: int | None) -> HttpConfig | None:
    if asked is not None:
        http = replace(http or HttpConfig(), port=asked)
    return replace(http, port=_free_port(http.host)) if http is not None and http.port == 0 else http


def _free_port(host: str) -> int:
    family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.bind(address)
        return int(probe.getsockname()[1])


def _check_door(ensemble: Ensemble, keys: Path | None, *, insecure: bool) -> None:
    """The router checks it again; here nothing has been loaded yet. Raises BindRefused."""
    router = ensemble.router
    named = router.tls
    tls = None if named is None else Tls.named(named.certificate, named.key, named.client_ca)
    doors = [("router.host", "--port", _Door(router.host, router.port, tls=tls, insecure=insecure))]
    if router.http is not None:
        http = _Door(router.http.host, router.http.port, tls=tls, insecure=insecure)
        doors.append(("router.http.host", "--http-port", http))
    has_keys = bool(keys or os.environ.get(_KEYS) or router.keys)
    for key, option, door in doors:
        try:
            check_reach(door, "router.tls in the configuration")
            check_keyed(door, has_keys=has_keys)
        except BindRefused as refused:
            raise BindRefused(f"{key} {refused}") from None
        check_free(door, option)


def _router(ensemble: Ensemble, places: Sequence[Place], accepted: Path, keys: Path | None, *, insecure: bool) -> Role:
    """A program of its own: it stays small where copies of this process would not."""
    command = [sys.executable, "-m", "octet.cli", "router", "--port", str(ensemble.router.port)]
    command += [] if keys is None else ["--keys", str(keys)]
    command += ["--insecure"] if insecure else []
    if ensemble.router.http is not None:
        command += ["--http-port", str(ensemble.router.http.port)]
    if ensemble.source is not None:
        command += ["--config", str(ensemble.source), "--accepted", str(accepted)]
    for place in places:
        command += ["--replica", f"{place.specialist.name}={place.address}"]
    return Role(_ROUTER, command=tuple(command), stage=1, ready_words=" ready on ", reloads=True)


def _traces(otlp: str) -> tuple[str, ...]:
    return ("--otlp", otlp) if otlp else ()


def _supervise(
    roles: Sequence[Role], ensemble: Ensemble, care: Care, began: float, logs: LogSettings, *, as_json: bool
) -> int:
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # gRPC begins in the copies, never here
    out, log = Outlet(sys.stdout.fileno()), Outlet(sys.stderr.fileno())

    def tell(supervisor: Supervisor) -> None:
        ready = _ready(ensemble, supervisor, time.monotonic() - began)
        lines = [json.dumps(ready)] if as_json else [*_table(ensemble, supervisor), _ready_line(ready)]
        out.write("".join(f"{line}\n" for line in lines))

    names = [role.name for role in roles]
    screen = JsonScreen(log, time.time) if logs.format == "json" else screen_on(log, names)
    return Supervisor(roles, screen, [out, log], care).run(tell)


def _table(ensemble: Ensemble, supervisor: Supervisor) -> Iterator[str]:
    """A row for each process that answers, and for each that answers elsewhere."""
    rows = [[child.name, *child.ready_text.split("\t")] for child in supervisor.children if child.name != _ROUTER]
    rows += [[each.name, "elsewhere", ", ".join(each.addresses)] for each in ensemble.specialists if each.addresses]
    num_columns = max(map(len, rows), default=0)
    widths = [max((len(row[column]) for row in rows if column < len(row)), default=0) for column in range(num_columns)]
    for row in rows:
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)).rstrip()


def _ready(ensemble: Ensemble, supervisor: Supervisor, seconds: float) -> dict[str, Any]:
    """Where it is served, and what that takes."""
    said = next((child.ready_text for child in supervisor.children if child.name == _ROUTER), "")
    found = _READY_ON.search(said)
    http = ensemble.router.http
    scheme = "http" if ensemble.router.tls is None else "https"
    return {
        "address": found[1] if found else address_of(_Door(ensemble.router.host, ensemble.router.port)),
        "http": None if http is None else f"{scheme}://{address_of(_Door(http.host, http.port))}",
        "specialists": list(ensemble.names),
        "processes": len(supervisor.pids),
        "memory_bytes": pss_of([os.getpid()]),
        "seconds": round(seconds, 3),
    }


def _ready_line(ready: dict[str, Any]) -> str:
    address, memory_bytes = ready["address"], ready["memory_bytes"]
    memory = "" if memory_bytes is None else f", {memory_bytes >> 20:,} MiB"
    also = "" if ready["http"] is None else f" and {ready['http']}"
    try_it = "" if address.endswith(":50051") else f" --address {address}"
    return (
        f"octet ready on {address}{also} "
        f"({len(ready['specialists'])} specialists, {ready['processes']} processes{memory}) "
        f'after {ready["seconds"]:.1f} s - try: octet generate "..."{try_it}'
    )
