"""Between router and replicas: who may pass, who is healthy, what may be tried again. Deterministic, all of it."""
