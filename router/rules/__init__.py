"""Text that belongs to one specialist whatever the classifier thinks: recognised by its structure, in linear time."""
