"""Tests of the control plane: changes by operators, and automatic changes, while the router serves."""
