"""Tests of `octet jobs`."""
