"""Certificates for the tests of keys."""

from tests.specialist.server.test_tls import pki

__all__ = ["pki"]
