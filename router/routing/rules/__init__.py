"""Rules recognize text by its structure, in linear time."""
