"""Certificates for the door's tests."""

from tests.service.test_tls import pki

__all__ = ["pki"]
