"""Certificates for the HTTP tests."""

from tests.service.test_tls import pki

__all__ = ["pki"]
