"""Tests of `octet top` in a real terminal and without a terminal."""
