"""The `octet` command: a table of command groups, each imported only when it is used."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

_COMMANDS = {
    "octet.cli.serve:add_serve_command": "serve",
    "octet.cli.requests:add_generate_command": "generate",
    "octet.cli.chat:add_chat_command": "chat",
    "octet.cli.jobs:add_jobs_command": "jobs",
    "octet.cli.requests:add_route_command": "route",
    "octet.cli.receipts:add_receipt_command": "receipt",
    "octet.cli.requests:add_cancel_command": "cancel",
    "octet.cli.operate:add_breaker_commands": "breakers breaker",
    "octet.cli.operate:add_knob_commands": "knobs",
    "octet.cli.operate:add_lane_commands": "lanes adapters",
    "octet.cli.operate:add_refresh_command": "refresh",
    "octet.cli.operate:add_replica_commands": "replicas drain undrain",
    "octet.cli.operate:add_shadow_command": "shadow",
    "octet.cli.operate:add_audit_commands": "audit events",
    "octet.cli.top:add_top_command": "top",
    "octet.cli.operate:add_slo_command": "slo",
    "octet.cli.receipts:add_receipts_command": "receipts",
    "octet.cli.why:add_why_command": "why",
    "octet.cli.keys:add_keys_command": "keys",
    "octet.cli.init:add_init_command": "init",
    "octet.cli.check:add_check_command": "check",
    "octet.cli.router:add_router_command": "router",
    "octet.cli.specialist:add_specialist_command": "specialist",
    "bench.cli:add_bench_command": "bench",
    "octet.cli.simulate:add_simulate_command": "simulate",
    "octet.cli.completion:add_completion_command": "completion",
}
"""The commands that each function adds."""
_EXTRAS = {"top": "cli", "completion": "cli", "keys": "router", "router": "router"}
_EXTRAS |= dict.fromkeys(("serve", "init", "specialist", "bench", "simulate"), "serve")
"""The extra that a command needs on top of the base package."""
_SERVING_COMMANDS = frozenset({"serve", "router", "specialist", "keys", "bench", "simulate"})
_OWN_PACKAGES = frozenset({"octet", "router", "specialist", "admission", "kvpool", "simulation"})
_CHECKOUT_ONLY = "bench"
_EXIT_STATUS_HELP = """\
Exit status: 0 on success; 1 when a server or a benchmark failed, or a
simulated objective is missed; 2 when an option, file, name or field is invalid;
3 when the server is unreachable or refuses the request for now (retry later);
4 when the request failed or timed out; 5 when no specialist should answer;
130 after Ctrl-C; 141 when the reader of the output closed the pipe. The error is
one line on standard error.
"""
_VERSION = "--version"
_EXIT_INVALID, _EXIT_INTERRUPTED, _EXIT_PIPE_CLOSED = 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status. Ctrl-C is handled even while modules are being imported."""
    try:
        _open_standard_streams()
        try:
            return _main(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()  # report a failed write here, not at interpreter exit
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return _EXIT_PIPE_CLOSED
    except OSError as error:  # usually a full disk
        _discard_output()
        target = "standard output" if error.filename is None else error.filename
        print(f"octet: {target}: {error.strerror or error}", file=sys.stderr)
        return _EXIT_INVALID


def _discard_output() -> None:
    """Send the output that is still buffered to /dev/null."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_standard_streams() -> None:
    """Connect closed standard streams (`>&-`) to /dev/null, so that no file opened later takes their place."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            devnull = os.open(os.devnull, os.O_RDWR)
            if devnull != fd:
                os.dup2(devnull, fd)
                os.close(devnull)
            os.set_inheritable(fd, True)
            setattr(sys, name, os.fdopen(fd, mode))


def _main(argv: Sequence[str]) -> int:
    command = argv[0] if argv else ""
    if command not in _SERVING_COMMANDS:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC reads this variable when it is imported
    arguments = _parser(command).parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except ModuleNotFoundError as error:
        return _report_missing(command, error)


def whole_parser() -> "argparse.ArgumentParser":
    """Return the parser with every command."""
    return _parser("")


def _parser(command: str) -> "argparse.ArgumentParser":
    """Return the parser with the given command only, or with all commands if there is no such command."""
    import argparse

    from octet import __version__

    parser = argparse.ArgumentParser(
        prog="octet",
        description="Serve many small specialist models as one product.",
        epilog=_EXIT_STATUS_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(_VERSION, action="version", version=f"octet {__version__}")
    if command == _VERSION:
        return parser
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    wanted = {target: names for target, names in _COMMANDS.items() if command in names.split()} or _COMMANDS
    for target, names in wanted.items():
        try:
            module, function = target.split(":")
            getattr(import_module(module), function)(commands)
        except ModuleNotFoundError as error:
            _add_missing(commands, names.split()[0], error)
    return parser


def _add_missing(commands: Any, name: str, error: ModuleNotFoundError) -> None:
    """Add a placeholder for a command whose packages are missing; it explains how to install them."""
    about = f"not installed: {_install_hint(name, error)}"
    parser = commands.add_parser(name, help=about, add_help=False, prefix_chars="\0")
    parser.add_argument("rest", nargs="*", help="ignored")
    parser.set_defaults(run=lambda _: _report_missing(name, error))


def _report_missing(name: str, error: ModuleNotFoundError) -> int:
    print(f"octet {name}: {error.name} is not installed; {_install_hint(name, error)}", file=sys.stderr)
    return _EXIT_INVALID


def _install_hint(name: str, error: ModuleNotFoundError) -> str:
    """Return how to install the missing module. If it is not an optional one, raise the error again."""
    if name not in _EXTRAS or (error.name or "").partition(".")[0] in _OWN_PACKAGES:
        raise error
    if error.name == _CHECKOUT_ONLY:
        return "the benchmarks are not part of the package; run them from a checkout of the repository"
    from octet.terminal import install_hint

    return install_hint(_EXTRAS[name])
