"""What an operator lives through, with every part real but the model that goes wrong."""
