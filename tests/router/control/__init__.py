"""Tests of the control plane: changes by operators and by machines while the router serves."""
