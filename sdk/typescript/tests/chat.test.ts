/** Conversations. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Conflict, type Message, ReplicaLost } from "../src/index.js";
import { ANSWER, ENDING, Fake, events, fault, hang, json, chunk } from "./fake.js";

const HI: Message = { role: "assistant", content: "hi" };

test("every turn contains the earlier turns and keeps one session", async () => {
  await Fake.serve([json(ANSWER), events([chunk("h"), chunk("i"), ENDING]), json(ANSWER)], async (octet, fake) => {
    const chat = octet.chat({ system: "Be short.", max_tokens: 4 });
    assert.equal((await chat.say("one")).text, "hi");
    const stream = chat.stream("two");
    for await (const _ of stream);
    assert.equal((await stream.answer()).text, "hi");
    await chat.say({ role: "user", content: "three" });
    const users = ["one", "two", "three"].map((content): Message => ({ role: "user", content }));
    const whole = [{ role: "system", content: "Be short." }, ...users.flatMap((user) => [user, HI])];
    assert.deepEqual(chat.messages, whole);
    assert.deepEqual(
      fake.requests.map((each) => (each.body["messages"] as unknown[]).length),
      [2, 4, 6],
    );
    assert.deepEqual(fake.requests[2]?.body["messages"], whole.slice(0, 6));
    const sessions = new Set(fake.requests.map((each) => each.body["session_id"]));
    assert.equal(sessions.size, 1);
    assert.match(String([...sessions][0]), /^[0-9a-f]{32}$/);
    assert.equal(fake.requests[0]?.body["max_tokens"], 4);
  });
});

test("a turn that fails leaves the conversation as it was", async () => {
  await Fake.serve([fault(500, "internal"), events([chunk("half")], "cut"), json(ANSWER)], async (octet, fake) => {
    const chat = octet.chat({ session_id: "mine" });
    await assert.rejects(chat.say("one"));
    await assert.rejects(async () => {
      for await (const _ of chat.stream("two"));
    }, ReplicaLost);
    assert.deepEqual(chat.messages, []);
    await chat.say("three");
    assert.deepEqual(fake.requests[2]?.body["messages"], [{ role: "user", content: "three" }]);
    assert.equal(fake.requests[2]?.body["session_id"], "mine");
  });
});

test("a second concurrent turn is refused; an unread stream is not a turn", async () => {
  await Fake.serve([hang, json(ANSWER)], async (octet, fake) => {
    const chat = octet.chat();
    void chat.stream("never read");
    const controller = new AbortController();
    const first = chat.say("one", { signal: controller.signal });
    await assert.rejects(chat.say("two"), Conflict);
    await assert.rejects(chat.stream("two").answer(), Conflict);
    await fake.called(1);
    controller.abort();
    await assert.rejects(first);
    assert.equal((await chat.say("three")).text, "hi");
  });
});

test("a tool call stays in the conversation, and its result is the next turn", async () => {
  const call = { id: "c1", name: "add", arguments: '{"a": 1}' };
  await Fake.serve(
    [json({ ...ANSWER, text: "", tool_calls: [call], finish_reason: "tool_calls" }), json(ANSWER)],
    async (octet, fake) => {
      const chat = octet.chat({ tools: [{ name: "add", parameters: { type: "object" } }] });
      const [asked] = (await chat.say("1 + 2")).tool_calls;
      await chat.say([{ role: "tool", content: "3", tool_call_id: asked!.id }]);
      assert.deepEqual(fake.requests[1]?.body["messages"], [
        { role: "user", content: "1 + 2" },
        { role: "assistant", content: "", tool_calls: [call] },
        { role: "tool", content: "3", tool_call_id: "c1" },
      ]);
    },
  );
});
