"""`octet router`: one endpoint over replicas that run elsewhere; `octet router train` and `eval`: its classifier;
`octet router tune`: its thresholds."""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from octet.arguments import port
from octet.config.ensemble import Ensemble, HttpConfig, RouterConfig, TlsConfig
from octet.rpc.bind import Tls, check_free, check_keyed, check_reach
from octet.telemetry.endpoint import endpoint_of
from octet.telemetry.logs import add_log_options, log_settings, set_up
from octet.telemetry.options import add_trace_option
from router.keys.source import VARIABLE, open_keys
from router.replicas.channel import ReplicaTls
from router.service.settings import HttpDoor, RouterSettings, addresses_of

_DESCRIPTION = """\
Serve octet.v1.Inference and octet.v1.Operator (with health and reflection), and
where the configuration or --http-port says so OpenAI's dialect over HTTP, over
replicas that run elsewhere. Prints one line when every specialist has a replica
that is warm.
The configuration is followed while it runs; SIGHUP looks at it at once.
SIGTERM and Ctrl-C finish what is running, a second Ctrl-C does not.

Exit status: 0 after an orderly end, 2 when something must be put right first
(the message says what), 130 after a second Ctrl-C.
"""


def add_router_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    from router.training.cli import add_training_commands
    from router.tuning.cli import add_tune_command

    parser = commands.add_parser(
        "router",
        description=_DESCRIPTION,
        help="serve one endpoint over replicas that run elsewhere",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="the ensemble (default: eight C++ specialists)")
    parser.add_argument(
        "--accepted",
        type=Path,
        metavar="FILE",
        help="keeps what was last accepted of the configuration, and starts from it where that cannot be used any more",
    )
    _add_door(parser.add_argument_group("where and to whom"))
    _add_replicas(parser.add_argument_group("its replicas"))
    _add_telling(parser.add_argument_group("what it tells"))
    parser.set_defaults(run=_run)
    commands_below = parser.add_subparsers(metavar="COMMAND")
    add_training_commands(commands_below)
    add_tune_command(commands_below)


def _add_door(group: "argparse._ArgumentGroup") -> None:
    usual = RouterConfig()
    group.add_argument("--host", help=f"default: the configuration's, or {usual.host}")
    group.add_argument("--port", type=port, help=f"0 for any (default: the configuration's, or {usual.port})")
    group.add_argument("--socket", type=Path, metavar="PATH", help="a Unix socket instead of host and port")
    group.add_argument("--http-host", metavar="HOST", help=f"default: the configuration's, or {HttpConfig().host}")
    group.add_argument(
        "--http-port",
        type=port,
        metavar="PORT",
        help="serve HTTP here, 0 for any (default: the configuration's; where it has none, HTTP is not served)",
    )
    group.add_argument("--tls-certificate", type=Path, metavar="FILE")
    group.add_argument("--tls-key", type=Path, metavar="FILE")
    group.add_argument("--tls-client-ca", type=Path, metavar="FILE", help="serve only whom it has signed for")
    group.add_argument(
        "--keys",
        type=Path,
        metavar="FILE",
        help=f"serve only who shows one of these (octet keys makes them); default: {VARIABLE}, or the configuration's",
    )
    group.add_argument(
        "--insecure",
        action="store_true",
        help="serve other machines without TLS, or without keys: something else guards the way",
    )


def _add_replicas(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--replica",
        type=_replica,
        action="append",
        default=[],
        metavar="SPECIALIST=ADDRESS",
        help="host:port, unix:PATH, or dns:///name:port for every address behind the name; repeatable",
    )
    group.add_argument("--replica-ca", type=Path, metavar="FILE", help="replicas must show what it has signed")
    group.add_argument("--replica-certificate", type=Path, metavar="FILE", help="shown to replicas that ask")
    group.add_argument("--replica-key", type=Path, metavar="FILE")


def _add_telling(group: "argparse._ArgumentGroup") -> None:
    add_trace_option(group, "telemetry.otlp in the configuration")
    add_log_options(group)


def _run(arguments: argparse.Namespace) -> int:
    set_up(log_settings(arguments), "%(asctime)s %(levelname)s octet router %(name)s: %(message)s")
    try:
        return _serve(arguments)
    except (OSError, ValueError, RuntimeError) as error:
        print(f"octet router: {error}", file=sys.stderr)
        return 2


def _serve(arguments: argparse.Namespace) -> int:
    ensemble = _ensemble(arguments.config, arguments.accepted)
    settings = _settings(arguments, ensemble)
    addresses_of(ensemble, settings)
    for door, option in ((settings, "--port"), (settings.http, "--http-port")):
        if door is not None:
            check_reach(door)
            check_keyed(door, has_keys=settings.keys is not None)
            check_free(door, option)
    if settings.keys is not None:
        settings.keys.book()
    from router.accepted import AcceptedWatch
    from router.service.process import serve  # what follows loads a classifier: not for --help, nor for a mistake

    if arguments.accepted is None:
        return serve(ensemble, settings)
    return serve(ensemble, settings, watching=partial(AcceptedWatch, arguments.accepted))


def _ensemble(path: Path | None, accepted: Path | None) -> Ensemble:
    from octet.config.default import default_ensemble
    from octet.config.read import read_ensemble
    from router.accepted import open_accepted

    if path is None:
        return default_ensemble()
    return read_ensemble(path) if accepted is None else open_accepted(path, accepted)


def _settings(arguments: argparse.Namespace, ensemble: Ensemble) -> RouterSettings:
    return RouterSettings(
        host=ensemble.router.host if arguments.host is None else arguments.host,
        port=ensemble.router.port if arguments.port is None else arguments.port,
        socket=arguments.socket,
        tls=_tls(arguments, ensemble.router.tls),
        insecure=arguments.insecure,
        http=_http_door(arguments, ensemble.router),
        keys=open_keys(arguments.keys, os.environ, ensemble.router.keys),
        replicas=_by_specialist(arguments.replica),
        replica_tls=_replica_tls(arguments),
        otlp=endpoint_of(arguments.otlp, ensemble.telemetry.otlp, os.environ),
    )


def _http_door(arguments: argparse.Namespace, router: RouterConfig) -> HttpDoor | None:
    configured = router.http
    asked: int | None = arguments.http_port
    if configured is None and asked is None:
        if arguments.http_host is not None:
            raise ValueError("--http-host: HTTP is not served; give --http-port as well")
        return None
    usual = configured or HttpConfig()
    return HttpDoor(
        host=arguments.http_host or usual.host,
        port=usual.port if asked is None else asked,
        allow_origins=usual.allow_origins,
        tls=_tls(arguments, router.tls),
        insecure=arguments.insecure,
    )


def _by_specialist(given: Sequence[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for specialist, address in given:
        if address in found.get(specialist, ()):
            raise ValueError(f"--replica: {specialist}={address} is given more than once")
        found[specialist] = (*found.get(specialist, ()), address)
    return found


def _tls(arguments: argparse.Namespace, configured: TlsConfig | None) -> Tls | None:
    given = (arguments.tls_certificate, arguments.tls_key)
    if given == (None, None) and arguments.tls_client_ca is None:
        tls = configured
        return None if tls is None else Tls.named(tls.certificate, tls.key, tls.client_ca)
    if None in given:
        raise ValueError("--tls-certificate and --tls-key belong together")
    return Tls(*given, client_ca=arguments.tls_client_ca)


def _replica_tls(arguments: argparse.Namespace) -> ReplicaTls | None:
    own = (arguments.replica_certificate, arguments.replica_key)
    if arguments.replica_ca is None:
        if own != (None, None):
            raise ValueError("--replica-certificate is shown only to replicas whose own is checked: give --replica-ca")
        return None
    return ReplicaTls(arguments.replica_ca, *own)


def _replica(text: str) -> tuple[str, str]:
    specialist, equals, address = text.partition("=")
    if not specialist or not equals or not address:
        raise argparse.ArgumentTypeError(f"a replica is given as SPECIALIST=ADDRESS, got {text!r}")
    return specialist, address
