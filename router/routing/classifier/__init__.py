"""The classifier: for each text, a distribution over the specialists and `reject`."""
