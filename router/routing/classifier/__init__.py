"""The classifier: a distribution over the specialists and `reject` for a text."""
