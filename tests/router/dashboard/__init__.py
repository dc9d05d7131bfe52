"""The operators' page, in a real browser."""
