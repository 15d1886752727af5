// OpenAI's SDK for JavaScript, unmodified.

import { createServer } from "node:http";
import OpenAI from "openai";
import { check, main, assert, raises, wav, V1, KEY, MODEL, EMBED, AUDIO, QUESTION } from "./checks.mjs";

const client = new OpenAI({ baseURL: V1, apiKey: KEY, timeout: 120_000, maxRetries: 0 });
const messages = [{ role: "user", content: QUESTION }];
const STORY = "Tell me a story about a queue.";
const boat = {
  type: "object",
  properties: { colour: { enum: ["red", "blue"] }, sails: { type: "boolean" } },
  required: ["colour", "sails"],
  additionalProperties: false,
};
const text = (events) =>
  events.filter((e) => e.type === "response.output_text.delta").map((e) => e.delta).join("");

check("models", async () => {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  assert(ids.includes(MODEL));
});

check("chat", async () => {
  const answer = await client.chat.completions.create({ model: MODEL, messages, max_tokens: 20 });
  assert(answer.choices[0].message.content);
});

check("chat, streamed", async () => {
  const stream = await client.chat.completions.create({ model: MODEL, messages, max_tokens: 20, stream: true });
  let content = "";
  for await (const chunk of stream) content += chunk.choices[0]?.delta?.content ?? "";
  assert(content);
});

check("chat.completions.stream()", async () => {
  const stream = client.chat.completions.stream({ model: MODEL, messages, max_tokens: 20 });
  let content = "";
  stream.on("content", (delta) => (content += delta));
  assert((await stream.finalContent()) === content);
});

check("chat.completions.parse()", async () => {
  const response_format = { type: "json_schema", json_schema: { name: "boat", schema: boat, strict: true } };
  const answer = await client.chat.completions.parse({ model: MODEL, messages, max_tokens: 100, response_format });
  const parsed = JSON.parse(answer.choices[0].message.content);
  assert(["red", "blue"].includes(parsed.colour));
});

check("completions", async () => {
  const answer = await client.completions.create({ model: MODEL, prompt: "Flotilla", max_tokens: 5 });
  assert(answer.choices[0].text);
});

check("embeddings", async () => {
  const answer = await client.embeddings.create({ model: EMBED, input: ["one", "two"] });
  assert(answer.data.length === 2 && answer.data[0].embedding.length > 1);
}, "embed");

check("errors", async () => {
  const error = await raises(OpenAI.NotFoundError, () => client.chat.completions.create({ model: "no-such", messages }));
  assert(error.code === "model_not_found");
  await raises(OpenAI.BadRequestError, () => client.chat.completions.create({ model: MODEL, messages, max_tokens: -1 }));
});

check("responses", async () => {
  const answer = await client.responses.create({ model: MODEL, input: QUESTION, max_output_tokens: 20 });
  assert(answer.output_text);
  assert((await client.responses.retrieve(answer.id)).output_text === answer.output_text);
  const items = [];
  for await (const item of client.responses.inputItems.list(answer.id)) items.push(item);
  assert(items.length === 1);
  await client.responses.delete(answer.id);
  await raises(OpenAI.NotFoundError, () => client.responses.retrieve(answer.id));
});

check("responses.stream()", async () => {
  const stream = client.responses.stream({ model: MODEL, input: QUESTION, max_output_tokens: 200 });
  const events = [];
  for await (const event of stream) events.push(event);
  assert((await stream.finalResponse()).output_text === text(events));
});

check("responses.parse()", async () => {
  const format = { type: "json_schema", name: "boat", schema: boat, strict: true };
  const answer = await client.responses.parse({ model: MODEL, input: QUESTION, max_output_tokens: 100, text: { format } });
  assert(["red", "blue"].includes(JSON.parse(answer.output_text).colour));
});

check("responses, background and cancelled", async () => {
  let answer = await client.responses.create({ model: MODEL, input: QUESTION, background: true, max_output_tokens: 20 });
  for (let tries = 0; tries < 600 && ["queued", "in_progress"].includes(answer.status); tries++) {
    await new Promise((resolve) => setTimeout(resolve, 100));
    answer = await client.responses.retrieve(answer.id);
  }
  assert(answer.output_text);
  const long = await client.responses.create({
    model: MODEL, input: STORY, background: true, max_output_tokens: 2000, ignore_eos: true, min_tokens: 400,
  });
  assert((await client.responses.cancel(long.id)).status === "cancelled");
});

check("responses, stream resumed", async () => {
  const stream = await client.responses.create({
    model: MODEL, input: STORY, background: true, stream: true, max_output_tokens: 100,
  });
  const events = [];
  for await (const event of stream) {
    events.push(event);
    if (events.length === 8) break;
  }
  const { id } = events[0].response;
  const starting_after = events.at(-1).sequence_number;
  for await (const event of await client.responses.retrieve(id, { stream: true, starting_after })) events.push(event);
  assert(events.every((event, n) => event.sequence_number === n));
});

check("audio.transcriptions", async () => {
  const file = new File([wav()], "sound.wav", { type: "audio/wav" });
  const answer = await client.audio.transcriptions.create({ model: AUDIO, file });
  assert(typeof answer.text === "string");
}, "audio");

const line = (custom_id) =>
  JSON.stringify({ custom_id, method: "POST", url: "/v1/chat/completions", body: { model: MODEL, messages, max_tokens: 3 } });

check("files", async () => {
  const file = await client.files.create({ file: new File(["{}\n"], "in.jsonl"), purpose: "batch" });
  assert((await client.files.retrieve(file.id)).bytes === 3);
  const ids = [];
  for await (const each of client.files.list()) ids.push(each.id);
  assert(ids.includes(file.id));
  assert((await (await client.files.content(file.id)).text()) === "{}\n");
  assert((await client.files.delete(file.id)).deleted);
  await raises(OpenAI.NotFoundError, () => client.files.retrieve(file.id));
});

check("batches", async () => {
  const data = [1, 2, 3, 4, 5].map((n) => line(`line-${n}`)).join("\n");
  const file = await client.files.create({ file: new File([data], "in.jsonl"), purpose: "batch" });
  let batch = await client.batches.create({
    input_file_id: file.id, endpoint: "/v1/chat/completions", completion_window: "24h",
  });
  for (let tries = 0; tries < 600 && !batch.completed_at; tries++) {
    await new Promise((resolve) => setTimeout(resolve, 100));
    batch = await client.batches.retrieve(batch.id);
  }
  assert(batch.request_counts.completed === 5, JSON.stringify(batch));
  const answers = (await (await client.files.content(batch.output_file_id)).text()).trim().split("\n").map(JSON.parse);
  assert(answers.every((each) => each.response.body.choices[0].message.content));
  const listed = [];
  for await (const each of client.batches.list({ limit: 1 })) listed.push(each.id);
  assert(listed.includes(batch.id));
  const error = await raises(OpenAI.ConflictError, () => client.batches.cancel(batch.id));
  assert(error.message.includes("Cannot cancel a batch with status 'completed'."));
});

check("webhooks", async () => {
  assert((await client.webhooks.eventTypes.list()).data.includes("response.completed"));
  const calls = [];
  const server = createServer(async (request, response) => {
    let body = "";
    for await (const part of request.setEncoding("utf8")) body += part;
    calls.push({ body, headers: request.headers });
    response.writeHead(204).end();
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${server.address().port}/`;
  const made = await client.webhooks.create({ name: "a", url, event_types: ["batch.failed"] });
  assert(made.signing_secret.startsWith("whsec_"));
  const ids = [];
  for await (const each of client.webhooks.list({ limit: 1 })) ids.push(each.id);
  assert(ids.includes(made.id));
  const changed = await client.webhooks.update(made.id, { event_types: ["response.completed"] });
  assert(changed.event_types[0] === "response.completed");
  assert((await client.webhooks.retrieve(made.id)).name === "a");
  const { signing_secret } = await client.webhooks.rotateSecret(made.id);
  assert((await client.webhooks.test(made.id, { event_type: "batch.expired" })).success);
  const answer = await client.responses.create({
    model: MODEL, input: QUESTION, background: true, max_output_tokens: 400,
  });
  for (let tries = 0; tries < 600 && calls.length < 2; tries++) {
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  const events = [];
  for (const { body, headers } of calls) events.push(await client.webhooks.unwrap(body, headers, signing_secret));
  assert(events.map((each) => each.type).join() === "batch.expired,response.completed");
  assert(events[1].data.id === answer.id);
  const { body, headers } = calls[1];
  await raises(OpenAI.InvalidWebhookSignatureError, () => client.webhooks.unwrap(`${body} `, headers, signing_secret));
  assert((await client.webhooks.delete(made.id)).deleted);
  await raises(OpenAI.NotFoundError, () => client.webhooks.retrieve(made.id));
  server.close();
});

await main();
