"""Decides which sequences of a replica run next, by the rules of admission/policy.py. Deterministic."""
