"""Where requests come in: one validator for every front door."""
