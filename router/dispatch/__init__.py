"""Dispatch: attempts at one replica after another until one answers, and the relay of its stream."""
