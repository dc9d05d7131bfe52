"""The router's HTTP door: OpenAI's and Anthropic's dialects over the same reception, admission and receipts as gRPC."""
