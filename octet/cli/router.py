"""`octet router`: one router over replicas that run elsewhere."""

import argparse
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from octet.cli import arguments as cli
from octet.cli.arguments import Commands, parse_port
from octet.config.ensemble import Ensemble, HttpConfig, RouterConfig
from octet.rpc.certificates import Tls
from octet.rpc.listener import check_address_free, check_keys_configured, check_tls_configured
from octet.telemetry.logs import add_log_options, log_settings, set_up_logging
from octet.telemetry.trace_export import add_trace_option, resolve_otlp_endpoint
from router.api.keys.key_file import open_keys
from router.dispatch.transport import ReplicaTls
from router.settings import HttpSettings, RouterSettings, replica_addresses

_DESCRIPTION = """\
Serve octet.v1.Inference and octet.v1.Operator over replicas that run elsewhere,
with health and reflection; and the HTTP APIs, if the configuration or --http-port
enables them. Prints one line when every specialist has a ready replica. The
configuration file is watched for changes; SIGHUP reloads it at once. SIGTERM and
Ctrl-C finish running requests first; a second Ctrl-C stops at once.

Exit status: 0 after a clean shutdown, 2 when the configuration or an option is
invalid, 130 after a second Ctrl-C.
"""


def add_router_command(commands: Commands) -> None:
    from octet.cli.training import add_training_commands, add_tune_command

    about = "serve one endpoint over replicas that run elsewhere"
    parser = cli.add_parser(commands, "router", about, description=_DESCRIPTION)
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration (default: eight C++ specialists)")
    about = "save the last valid configuration here, and start from it if --config has become invalid"
    parser.add_argument("--accepted", type=Path, metavar="FILE", help=about)
    _add_listener_options(parser.add_argument_group("listening"))
    _add_replica_options(parser.add_argument_group("replicas"))
    telemetry = parser.add_argument_group("telemetry")
    add_trace_option(telemetry, "telemetry.otlp in the configuration")
    add_log_options(telemetry)
    parser.set_defaults(run=_run)
    subcommands = parser.add_subparsers(metavar="COMMAND")
    add_training_commands(subcommands)
    add_tune_command(subcommands)


def _add_listener_options(group: "argparse._ArgumentGroup") -> None:
    defaults, option = RouterConfig(), group.add_argument
    option("--host", help=f"default: the configuration's, or {defaults.host}")
    about = f"0 for any free port (default: the configuration's, or {defaults.port})"
    option("--port", type=parse_port, help=about)
    option("--socket", type=Path, metavar="PATH", help="a Unix socket instead of host and port")
    option("--http-host", metavar="HOST", help=f"default: the configuration's, or {HttpConfig().host}")
    about = "enable HTTP on this port, 0 for any free port (default: the configuration's, or HTTP disabled)"
    option("--http-port", type=parse_port, metavar="PORT", help=about)
    cli.add_tls_options(group, "require client certificates signed by this CA")
    cli.add_access_options(group)


def _add_replica_options(group: "argparse._ArgumentGroup") -> None:
    option = group.add_argument
    parse_replica = partial(cli.parse_pair, expected="a replica is given as SPECIALIST=ADDRESS")
    about = "host:port, unix:PATH, or dns:///name:port for every address of the name; repeatable"
    option("--replica", type=parse_replica, action="append", default=[], metavar="SPECIALIST=ADDRESS", help=about)
    option("--replica-ca", type=Path, metavar="FILE", help="CA that must have signed replica certificates")
    option("--replica-certificate", type=Path, metavar="FILE", help="client certificate for replicas")
    option("--replica-key", type=Path, metavar="FILE", help="key of the client certificate")


def _run(arguments: argparse.Namespace) -> int:
    set_up_logging(log_settings(arguments), "%(asctime)s %(levelname)s octet router %(name)s: %(message)s")
    return cli.report_errors("router", lambda: _serve(arguments))


def _serve(arguments: argparse.Namespace) -> int:
    from octet.config.loader import default_ensemble, read_ensemble
    from octet.config.reload import load_accepted_config

    config, accepted = arguments.config, arguments.accepted
    if config is None:
        ensemble = default_ensemble()
    else:
        ensemble = read_ensemble(config) if accepted is None else load_accepted_config(config, accepted)
    settings = _settings(arguments, ensemble)
    replica_addresses(ensemble, settings)
    for listener, option in ((settings, "--port"), (settings.http, "--http-port")):
        if listener is not None:
            check_tls_configured(listener)
            check_keys_configured(listener, has_keys=settings.keys is not None)
            check_address_free(listener, option)
    if settings.keys is not None:
        settings.keys.load()
    from router.server import serve  # imported late, because it loads a classifier: only for valid options

    return serve(ensemble, settings, accepted)


def _settings(arguments: argparse.Namespace, ensemble: Ensemble) -> RouterSettings:
    router = ensemble.router
    files, configured = cli.tls_files(arguments), router.tls
    tls = None if files is None else Tls(*files)
    if files is None and configured is not None:
        tls = Tls.from_paths(configured.certificate, configured.key, configured.client_ca)
    return RouterSettings(
        host=router.host if arguments.host is None else arguments.host,
        port=router.port if arguments.port is None else arguments.port,
        socket=arguments.socket,
        tls=tls,
        insecure=arguments.insecure,
        http=_http_listener(arguments, router.http, tls),
        keys=open_keys(arguments.keys, os.environ, router.keys),
        replicas=_group_by_specialist(arguments.replica),
        replica_tls=_replica_tls(arguments),
        otlp=resolve_otlp_endpoint(arguments.otlp, ensemble.telemetry.otlp, os.environ),
    )


def _http_listener(
    arguments: argparse.Namespace, configured: HttpConfig | None, tls: Tls | None
) -> HttpSettings | None:
    port: int | None = arguments.http_port
    if configured is None and port is None:
        if arguments.http_host is not None:
            raise ValueError("--http-host: HTTP is disabled; add --http-port")
        return None
    http = configured or HttpConfig()
    host, port = arguments.http_host or http.host, http.port if port is None else port
    return HttpSettings(host, port, allow_origins=http.allow_origins, tls=tls, insecure=arguments.insecure)


def _group_by_specialist(given: Sequence[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for specialist, address in given:
        if address in found.get(specialist, ()):
            raise ValueError(f"--replica: {specialist}={address} is given more than once")
        found[specialist] = (*found.get(specialist, ()), address)
    return found


def _replica_tls(arguments: argparse.Namespace) -> ReplicaTls | None:
    certificate = (arguments.replica_certificate, arguments.replica_key)
    if arguments.replica_ca is None:
        if certificate != (None, None):
            raise ValueError("--replica-certificate needs --replica-ca: it is shown to verified replicas only")
        return None
    return ReplicaTls(arguments.replica_ca, *certificate)
