// Anthropic's SDK for JavaScript, unmodified.

import Anthropic from "@anthropic-ai/sdk";
import { check, main, assert, raises, BASE, KEY, MODEL, QUESTION } from "./checks.mjs";

const client = new Anthropic({ baseURL: BASE, apiKey: KEY, timeout: 120_000, maxRetries: 0 });
const request = { model: MODEL, max_tokens: 20, messages: [{ role: "user", content: QUESTION }] };

check("messages", async () => {
  const answer = await client.messages.create(request);
  assert(answer.content[0].text && answer.usage.input_tokens > 0);
});

check("messages, streamed", async () => {
  const stream = client.messages.stream(request);
  let text = "";
  stream.on("text", (delta) => (text += delta));
  assert((await stream.finalText()) === text && text);
});

check("countTokens", async () => {
  const { max_tokens, ...body } = request;
  assert((await client.messages.countTokens(body)).input_tokens > 0);
});

check("errors", async () => {
  const error = await raises(Anthropic.NotFoundError, () => client.messages.create({ ...request, model: "no-such" }));
  assert(error.error.type === "error" && error.error.error.type === "not_found_error");
});

check("messages.batches", async () => {
  const requests = [0, 1, 2].map((n) => ({ custom_id: `q${n}`, params: request }));
  const wrong = { custom_id: "wrong", params: { ...request, model: "no-such" } };
  let batch = await client.messages.batches.create({ requests: [...requests, wrong] });
  assert(batch.id.startsWith("msgbatch_") && batch.request_counts.processing === 4);
  const until = Date.now() + 100_000;
  while (batch.processing_status !== "ended" && Date.now() < until) {
    await new Promise((resolve) => setTimeout(resolve, 500));
    batch = await client.messages.batches.retrieve(batch.id);
  }
  assert(batch.request_counts.succeeded === 3 && batch.request_counts.errored === 1);
  const found = {};
  for await (const each of await client.messages.batches.results(batch.id)) found[each.custom_id] = each.result;
  assert(Object.keys(found).length === 4 && found.q1.message.content[0].text);
  assert(found.wrong.type === "errored" && found.wrong.error.error.type === "not_found_error");
  const ids = [];
  for await (const each of client.messages.batches.list({ limit: 1 })) {
    if (ids.push(each.id) === 2) break;
  }
  assert(ids[0] === batch.id);
  assert((await client.messages.batches.delete(batch.id)).type === "message_batch_deleted");
  const canceled = await client.messages.batches.create({ requests });
  await client.messages.batches.cancel(canceled.id);
  await raises(Anthropic.BadRequestError, () => client.messages.batches.create({ requests: [] }));
});

await main();
