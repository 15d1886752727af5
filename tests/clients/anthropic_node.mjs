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

await main();
