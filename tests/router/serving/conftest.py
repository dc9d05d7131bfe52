"""Certificates for the router's tests."""

from tests.specialist.server.test_tls import pki

__all__ = ["pki"]
