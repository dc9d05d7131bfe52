"""Who should answer, and with which parameters: pure, and replayable from a receipt."""
