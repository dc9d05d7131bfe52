"""Certificates for HTTP tests."""

from tests.specialist.server.test_tls import pki

__all__ = ["pki"]
