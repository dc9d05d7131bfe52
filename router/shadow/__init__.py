"""Copies of requests that nobody waits for: sent, bounded, and forgotten when they are in the way."""
