"""The HTTP API: OpenAI's and Anthropic's dialects, Octet's own routes, and their OpenAPI document."""
