"""The laws of the ensemble: what must hold after every event of a random history."""
