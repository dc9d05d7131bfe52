"""An engine without weights."""
