"""The benches: each file adds one or more commands."""
