"""Certificates for these tests."""

from tests.service.test_tls import pki

__all__ = ["pki"]
