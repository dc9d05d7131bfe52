"""The forecast behind an admission decision: the known work, how long it takes, and which requests would be late."""
