"""The laws (invariants) of the ensemble, checked during every simulated run."""
