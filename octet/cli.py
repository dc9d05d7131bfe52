"""The `octet` command: a table of rooms, each loaded only when it is asked for."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse


def _serve(commands: Any) -> None:
    from octet.serve import add_serve_command
    from specialist.role import replica_roles

    add_serve_command(commands, replica_roles)


def _router(commands: Any) -> None:
    from router.cli import add_router_command

    add_router_command(commands)


def _specialist(commands: Any) -> None:
    from specialist.cli import add_specialist_command

    add_specialist_command(commands)


def _check(commands: Any) -> None:
    from octet.check import add_check_command

    add_check_command(commands)


def _generate(commands: Any) -> None:
    from octet.generate import add_generate_command

    add_generate_command(commands)


def _route(commands: Any) -> None:
    from octet.route import add_route_command

    add_route_command(commands)


def _receipt(commands: Any) -> None:
    from octet.receipt import add_receipt_command

    add_receipt_command(commands)


def _cancel(commands: Any) -> None:
    from octet.cancel import add_cancel_command

    add_cancel_command(commands)


def _breakers(commands: Any) -> None:
    from octet.operate.breakers import add_breaker_commands

    add_breaker_commands(commands)


def _knobs(commands: Any) -> None:
    from octet.operate.knobs import add_knob_commands

    add_knob_commands(commands)


def _lanes(commands: Any) -> None:
    from octet.operate.lanes import add_lane_commands

    add_lane_commands(commands)


def _replicas(commands: Any) -> None:
    from octet.operate.replicas import add_replica_commands

    add_replica_commands(commands)


def _shadow(commands: Any) -> None:
    from octet.operate.shadow import add_shadow_command

    add_shadow_command(commands)


def _audit(commands: Any) -> None:
    from octet.operate.audit import add_audit_commands

    add_audit_commands(commands)


def _slo(commands: Any) -> None:
    from octet.operate.slo import add_slo_command

    add_slo_command(commands)


def _receipts(commands: Any) -> None:
    from octet.operate.receipts import add_receipts_command

    add_receipts_command(commands)


def _why(commands: Any) -> None:
    from octet.why.command import add_why_command

    add_why_command(commands)


def _top(commands: Any) -> None:
    from octet.top.command import add_top_command

    add_top_command(commands)


def _keys(commands: Any) -> None:
    from router.keys_command import add_keys_command

    add_keys_command(commands)


def _bench(commands: Any) -> None:
    from bench.cli import add_bench_command

    add_bench_command(commands)


def _simulate(commands: Any) -> None:
    from bench.simulate import add_simulate_command

    add_simulate_command(commands)


def _chat(commands: Any) -> None:
    from octet.chat.command import add_chat_command

    add_chat_command(commands)


def _jobs(commands: Any) -> None:
    from octet.jobs.command import add_jobs_command

    add_jobs_command(commands)


def _completion(commands: Any) -> None:
    from octet.completion.command import add_completion_command

    add_completion_command(commands, whole_parser)


_COMMANDS: Mapping[str, Callable[[Any], None]] = {
    "serve": _serve,
    "generate": _generate,
    "chat": _chat,
    "jobs": _jobs,
    "route": _route,
    "receipt": _receipt,
    "cancel": _cancel,
    "breakers": _breakers,
    "breaker": _breakers,
    "knobs": _knobs,
    "lanes": _lanes,
    "adapters": _lanes,
    "replicas": _replicas,
    "drain": _replicas,
    "undrain": _replicas,
    "shadow": _shadow,
    "audit": _audit,
    "events": _audit,
    "top": _top,
    "slo": _slo,
    "receipts": _receipts,
    "why": _why,
    "keys": _keys,
    "check": _check,
    "router": _router,
    "specialist": _specialist,
    "bench": _bench,
    "simulate": _simulate,
    "completion": _completion,
}
_EXTRAS = {
    "serve": "serve",
    "router": "router",
    "keys": "router",
    "specialist": "serve",
    "bench": "serve",
    "simulate": "serve",
}
"""What a command needs beyond the base package: the extra that brings it."""
_SERVES = frozenset(_EXTRAS)
_ROOMS = frozenset({"octet", "router", "specialist", "admission", "kvpool", "bench"})
_EXIT_STATUS = """\
Exit status: 0 when all went well; 1 when something that serves, or is measured,
broke down, or a simulated promise is not kept; 2 when something must be put right first: an option, a file, a name,
a field; 3 when nothing could be reached or takes anything now (worth trying
again); 4 when it failed half-way or the time given has passed; 5 when no
specialist should answer; 130 after Ctrl-C; 141 when whoever read the output has
gone away. What went wrong is one line on standard error.
"""


_VERSION = "--version"
_WRONG, _INTERRUPTED, _PIPE_CLOSED = 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """What takes time, imports included, happens where Ctrl-C is expected."""
    try:
        _open_standard_streams()
        try:
            return _main(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()  # whether all could be written is known here, and not behind the interpreter's back
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        _write_nowhere()
        return _PIPE_CLOSED
    except OSError as error:
        _write_nowhere()
        what = "standard output" if error.filename is None else error.filename  # a disk that is full, as a rule
        print(f"octet: {what}: {error.strerror or error}", file=sys.stderr)
        return _WRONG


def _write_nowhere() -> None:
    """What is still to be flushed has no reader."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_standard_streams() -> None:
    """One that was closed before the start (`>&-`) reads and writes nothing, rather than whatever is opened next."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing != fd:
                os.dup2(nothing, fd)
                os.close(nothing)
            os.set_inheritable(fd, True)
            setattr(sys, name, os.fdopen(fd, mode))


def _main(given: Sequence[str]) -> int:
    asked = given[0] if given else ""
    if asked not in _SERVES:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when gRPC is loaded; what it notes is for its makers
    arguments = _parser(asked).parse_args(given)
    try:
        return int(arguments.run(arguments))
    except ModuleNotFoundError as error:
        return _lacks(asked, error)


def whole_parser() -> "argparse.ArgumentParser":
    """Every command there is."""
    return _parser("")


def _parser(asked: str) -> "argparse.ArgumentParser":
    """Of one command alone, where it is named."""
    import argparse

    from octet import __version__

    parser = argparse.ArgumentParser(
        prog="octet",
        description="Serve many small specialist models as one product.",
        epilog=_EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(_VERSION, action="version", version=f"octet {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in _asked_for(asked):
        try:
            add(commands)
        except ModuleNotFoundError as error:
            _add_missing(commands, next(name for name in _COMMANDS if _COMMANDS[name] is add), error)
    return parser


def _asked_for(asked: str) -> Iterable[Callable[[Any], None]]:
    if asked == _VERSION:
        return ()
    return [_COMMANDS[asked]] if asked in _COMMANDS else dict.fromkeys(_COMMANDS.values())


def _add_missing(commands: Any, name: str, error: ModuleNotFoundError) -> None:
    """In the place of a command whose packages are not here: says how to get them."""
    _check_foreign(name, error)
    about = f"not installed: {_how_to_get(name)}"
    parser = commands.add_parser(name, help=about, add_help=False, prefix_chars="\0")
    parser.add_argument("rest", nargs="*", help="anything")
    parser.set_defaults(run=lambda _: _lacks(name, error))


def _lacks(name: str, error: ModuleNotFoundError) -> int:
    _check_foreign(name, error)
    print(f"octet {name}: {error.name} is not installed; get it with: {_how_to_get(name)}", file=sys.stderr)
    return _WRONG


def _how_to_get(name: str) -> str:
    return f"pip install 'octet[{_EXTRAS[name]}]'"


def _check_foreign(name: str, error: ModuleNotFoundError) -> None:
    """A module of our own that is missing is a mistake of ours. Raises it."""
    if name not in _EXTRAS or (error.name or "").partition(".")[0] in _ROOMS:
        raise error


if __name__ == "__main__":
    sys.exit(main())
