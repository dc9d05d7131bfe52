"""Dispatch: try one replica after another until one answers, and relay its stream to the caller."""
