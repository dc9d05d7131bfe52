"""Every parser of the product, fed with invalid input."""
