"""Tests of the Python SDK and the commands that use it."""
