"""Tests of structured answers."""
