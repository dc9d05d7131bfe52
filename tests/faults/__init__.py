"""The thirty faults of the reliability table, done to live processes: what callers see, and what is left behind."""
