"""Dispatch: from a plan to an answer, replica after replica, and the relay of its stream."""
