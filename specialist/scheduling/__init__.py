"""The deterministic half of a replica: which sequences run in the next step. The rules are in admission/policy.py."""
