"""Every parser of the product, fed with what nobody meant to write."""
