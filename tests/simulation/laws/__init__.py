"""The laws of the ensemble, which must hold after every event of a random history."""
