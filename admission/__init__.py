"""Admission control, breakers, escalation and lanes. All decisions are deterministic."""
