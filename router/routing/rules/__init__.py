"""Rules recognise text by its structure, in linear time."""
