"""The `octet` command: a table of rooms, each loaded only when it is asked for."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


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


def _keys(commands: Any) -> None:
    from router.keys_command import add_keys_command

    add_keys_command(commands)


def _bench(commands: Any) -> None:
    from bench.cli import add_bench_command

    add_bench_command(commands)


_COMMANDS: Mapping[str, Callable[[Any], None]] = {
    "serve": _serve,
    "generate": _generate,
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
    "keys": _keys,
    "check": _check,
    "router": _router,
    "specialist": _specialist,
    "bench": _bench,
}


_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """What takes time, imports included, happens where Ctrl-C is expected."""
    try:
        _open_standard_streams()
        return _main(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return _INTERRUPTED


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
    import argparse

    from octet import __version__

    parser = argparse.ArgumentParser(prog="octet", description="Serve many small specialist models as one product.")
    parser.add_argument("--version", action="version", version=f"octet {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = given[0] if given else ""
    for add in [_COMMANDS[asked]] if asked in _COMMANDS else dict.fromkeys(_COMMANDS.values()):
        add(commands)
    arguments = parser.parse_args(given)
    return int(arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
