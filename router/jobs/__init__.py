"""Background jobs: recorded before they are acknowledged, and ended exactly once."""
