"""Tests of octet.rpc."""
