"""The operators' page: files that hold no data, and what a browser is told about them."""
