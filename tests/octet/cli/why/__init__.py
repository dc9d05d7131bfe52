"""The story of one request: true of what really happened, whatever that was."""
