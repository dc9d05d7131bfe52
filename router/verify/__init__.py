"""Verifiers of answers. Untrusted input is checked in child processes that can be killed."""
