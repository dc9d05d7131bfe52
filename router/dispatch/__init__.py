"""From a decision to an answer: replica after replica, and the relay of its stream."""
