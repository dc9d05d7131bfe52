"""Tests of service level objectives."""
