"""Text of requests and answers: tokens, chat templates, tool calls and structured output."""
