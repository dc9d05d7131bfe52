"""The deterministic half of a replica. It decides which sequences run next, by the rules of admission/policy.py."""
