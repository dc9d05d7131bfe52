"""Tests of `octet chat`, through a pipe and in a terminal."""
