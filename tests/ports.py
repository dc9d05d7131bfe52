"""A free port for the server of a test."""

from bench.processes import free_ports


def free_port() -> int:
    """Return a port that stays free while the server restarts."""
    return free_ports(1)[0]
