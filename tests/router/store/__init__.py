"""One store, three databases, the same laws."""
