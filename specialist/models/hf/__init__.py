"""Models as Hugging Face stores them: a directory of JSON and safetensors."""
