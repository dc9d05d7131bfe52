"""All parsers, grouped by the source of their input."""
