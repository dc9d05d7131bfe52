"""The faults of the table in docs/reliability.md, injected into live processes."""
