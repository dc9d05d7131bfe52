"""How long a test waits for something that must happen."""

PATIENCE = 300.0
"""Seconds until a wait fails. Only a hang takes this long; a busy machine may delay a process by a minute."""

TEST_SECONDS = 3 * PATIENCE
"""Seconds until an async test fails."""
