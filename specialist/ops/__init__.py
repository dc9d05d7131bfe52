"""Operators of the models: sampling, matrix products, attention, norms and rotary positions."""
