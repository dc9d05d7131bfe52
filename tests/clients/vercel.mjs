// The Vercel AI SDK: `node vercel.mjs URL FILE WORDS`. It takes the steps of steps.py, whose words it gets as JSON.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { writeFileSync } from "node:fs";
import { setTimeout } from "node:timers/promises";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false;
const [url, file, words] = process.argv.slice(2);
const { TALK, TOOLS, SYSTEM, HELLO, EARLIER, REPLY, LATER, STORY, PLACE, WEATHER, DESCRIPTION, RESULT, SHORT, LONG, TOO_LONG } =
  JSON.parse(words);
const place = z.object({ town: z.enum(["Oslo", "Rome"]), rain: z.boolean() });
const weather = tool({ description: DESCRIPTION, inputSchema: place, execute: async () => RESULT });

async function receipts(outcome, limit) {
  const response = await fetch(`${url}/v1/receipts?outcome=${outcome}&limit=${limit}`);
  return (await response.json()).receipts;
}

async function promptTokens() {
  return (await receipts("answered", 1))[0].usage.prompt_tokens;
}

async function cancelled() {
  return new Set((await receipts("cancelled", 500)).map((receipt) => receipt.request_id));
}

async function chat(door, prompt) {
  const asked = { model: door.create(TALK), system: SYSTEM, prompt, maxOutputTokens: SHORT };
  return (await generateText(asked)).text;
}

const steps = {
  async chat(door) {
    assert((await chat(door, HELLO)).trim());
    return "yes";
  },
  async stream(door) {
    const answer = streamText({ model: door.create(TALK), prompt: HELLO, maxOutputTokens: SHORT });
    const pieces = [];
    for await (const piece of answer.textStream) pieces.push(piece);
    assert(pieces.filter((piece) => piece).length > 1, `the answer came in one piece: ${pieces}`);
    return "yes";
  },
  async turns(door) {
    await chat(door, HELLO);
    const alone = await promptTokens();
    const messages = [
      { role: "user", content: EARLIER },
      { role: "assistant", content: REPLY },
      { role: "user", content: LATER },
    ];
    const asked = { model: door.create(TALK), system: SYSTEM, messages, maxOutputTokens: SHORT };
    assert((await generateText(asked)).text.trim());
    assert((await promptTokens()) > alone + 20, "the server must have seen the earlier turns");
    return "yes";
  },
  async structured(door) {
    const model = door.create(door.throughTool ? TOOLS : TALK);
    const asked = { model, prompt: PLACE, output: Output.object({ schema: place }), maxOutputTokens: LONG };
    place.parse((await generateText(asked)).output);
    return door.throughTool ? "yes, through a tool" : "yes";
  },
  async tools(door) {
    const answer = await generateText({
      model: door.create(TOOLS),
      prompt: WEATHER,
      tools: { weather },
      stopWhen: stepCountIs(2),
      prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? "none" : { type: "tool", toolName: "weather" } }),
      maxOutputTokens: LONG,
    });
    assert.equal(answer.steps.length, 2);
    const [call] = answer.steps[0].toolCalls;
    assert.equal(call.toolName, "weather");
    place.parse(call.input);
    return "yes";
  },
  async cancel(door) {
    const before = await cancelled();
    const leaving = new AbortController();
    const asked = { model: door.create(TALK), prompt: STORY, maxOutputTokens: LONG, abortSignal: leaving.signal };
    let pieces = 0;
    for await (const _ of streamText(asked).textStream) if (++pieces === 3) leaving.abort();
    assert(pieces >= 3);
    for (let tries = 0; [...(await cancelled())].every((id) => before.has(id)); tries++) {
      assert(tries < 600, "the server has not seen the cancellation");
      await setTimeout(50);
    }
    return "yes";
  },
  async "too long"(door) {
    for (const number of TOO_LONG) {
      const error = await raised(() => chat(door, "word ".repeat(number)));
      assert(APICallError.isInstance(error) && !error.isRetryable, String(error));
      assert.match(error.message, door.tooLong);
    }
    return `\`APICallError\` with the words \`${door.tooLong.source}\``;
  },
  async refused(door) {
    const asked = { model: door.create(TALK), prompt: WEATHER, tools: { weather } };
    const error = await raised(() => generateText(asked));
    assert.match(error.message, /does not support tools/);
    return "`APICallError`";
  },
};

async function raised(call) {
  try {
    await call();
  } catch (error) {
    return error;
  }
  throw new assert.AssertionError({ message: "nothing was raised" });
}

const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" });
const compatible = createOpenAICompatible({ name: "octet", baseURL: `${url}/v1`, supportsStructuredOutputs: true });
const tooLong = /maximum context length is/;
const doors = [
  { client: "@ai-sdk/openai", uses: "createOpenAI(...)", route: "/v1/responses", create: openai, tooLong },
  {
    client: "@ai-sdk/openai-compatible",
    uses: "createOpenAICompatible({..., supportsStructuredOutputs: true})",
    route: "/v1/chat/completions",
    create: compatible,
    tooLong,
  },
  {
    client: "@ai-sdk/anthropic",
    uses: "createAnthropic(...)",
    route: "/v1/messages",
    create: anthropic,
    tooLong: /prompt is too long/,
    throughTool: true,
  },
];

const require = createRequire(import.meta.url);
const lines = [];
for (const door of doors) {
  const taken = {};
  for (const [step, take] of Object.entries(steps)) {
    try {
      taken[step] = await take(door);
    } catch (error) {
      console.error(error);
      taken[step] = `FAILED: ${error.name}: ${error.message}`.slice(0, 300);
      process.exitCode = 1;
    }
  }
  const version = require(`${door.client}/package.json`).version;
  lines.push(JSON.stringify({ client: door.client, version, uses: door.uses, route: door.route, steps: taken }) + "\n");
}
writeFileSync(file, lines.join(""));
