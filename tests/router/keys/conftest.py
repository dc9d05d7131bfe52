"""Certificates of its own."""

from tests.service.test_tls import pki

__all__ = ["pki"]
