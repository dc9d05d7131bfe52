"""The thirty faults of the reliability table, injected into live processes."""
