"""A free port for the server of a test."""

from octet.cli.serve import find_free_port


def free_port() -> int:
    """Return a port that stays free while the server restarts."""
    return find_free_port("127.0.0.1", "--port", ())
