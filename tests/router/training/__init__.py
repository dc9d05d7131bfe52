"""Tests of classifier training."""
