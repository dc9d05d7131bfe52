"""Tests that cover all commands."""
