"""Certificates for the router's tests."""

from tests.service.test_tls import pki

__all__ = ["pki"]
