"""Tests of the router: decisions, replicas and receipts."""
