"""All parsers, by what they read."""
