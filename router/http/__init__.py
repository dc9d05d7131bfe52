"""The router's HTTP door: OpenAI's dialect over the same reception, admission and receipts as gRPC."""
