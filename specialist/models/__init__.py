"""What a model is: its shape, its weights, its words. Read from a Hugging Face directory or a GGUF file."""
