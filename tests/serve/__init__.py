"""Tests of `octet serve`."""
