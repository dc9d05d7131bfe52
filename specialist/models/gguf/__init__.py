"""Models as llama.cpp stores them: everything in one GGUF file."""
