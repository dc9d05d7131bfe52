/** Tool calls through OpenAI's unmodified package, against a real model behind a router. */

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { URL_OF_ROUTER } from "./router.js";

const openai = new OpenAI({ baseURL: `${URL_OF_ROUTER}/v1`, apiKey: "none", maxRetries: 0 });
const parameters = {
  type: "object",
  properties: { town: { enum: ["Rome", "Oslo"] }, days: { type: "integer", minimum: 1, maximum: 9 } },
  required: ["town", "days"],
  additionalProperties: false,
};
const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: "user", content: "hello" }];
const asked = {
  model: "octet/writer",
  messages,
  max_tokens: 300,
  seed: 1,
  tools: [{ type: "function" as const, function: { name: "weather", description: "Of a town.", parameters } }],
  tool_choice: { type: "function" as const, function: { name: "weather" } },
  parallel_tool_calls: false,
};

function check(call: OpenAI.ChatCompletionMessageToolCall | undefined): string {
  assert.ok(call?.type === "function" && call.function.name === "weather");
  const { town, days } = JSON.parse(call.function.arguments) as { town: string; days: number };
  assert.ok(["Rome", "Oslo"].includes(town) && Number.isInteger(days));
  return call.function.arguments;
}

test("a forced tool call is made, whole and streamed, and answered", async () => {
  const whole = (await openai.chat.completions.create(asked)).choices[0]!;
  assert.equal(whole.finish_reason, "tool_calls");
  const written = check(whole.message.tool_calls?.[0]);
  const streamed = (await openai.chat.completions.stream(asked).finalChatCompletion()).choices[0]!;
  assert.equal(streamed.finish_reason, "tool_calls");
  assert.equal(check(streamed.message.tool_calls?.[0]), written);
  const result = { role: "tool" as const, tool_call_id: whole.message.tool_calls![0]!.id, content: "rain" };
  const next = {
    ...asked,
    messages: [...messages, whole.message, result],
    tool_choice: "none" as const,
    max_tokens: 8,
  };
  assert.ok((await openai.chat.completions.create(next)).choices[0]?.message);
});
