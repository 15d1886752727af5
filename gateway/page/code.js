/** A request as a program: curl, Python, Node. */

import { key } from "./api.js";

export const LANGUAGES = ["curl", "Python", "Node"];

/** The text of a program that sends `body` to the chat endpoint at `origin`. */
export function program(language, origin, body) {
  return { curl, Python: python, Node: node }[language](origin, body);
}

function curl(origin, body) {
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  const auth = key() ? " \\\n  -H \"authorization: Bearer $FLOTILLA_API_KEY\"" : "";
  return `curl -N ${origin}/v1/chat/completions \\\n  -H 'content-type: application/json'${auth} \\\n  -d '${json}'`;
}

/** Texts, numbers, lists and objects of them are written in Python as in JSON. */
function python(origin, body) {
  const secret = key() ? 'os.environ["FLOTILLA_API_KEY"]' : '"none-needed-on-loopback"';
  const options = Object.entries(body).filter(([name]) => name !== "stream")
    .map(([name, value]) => `    ${name}=${JSON.stringify(value)},\n`).join("");
  return `${key() ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url="${origin}/v1", api_key=${secret})
stream = client.chat.completions.create(
${options}    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
`;
}

function node(origin, body) {
  const secret = key() ? "process.env.FLOTILLA_API_KEY" : '"none-needed-on-loopback"';
  const options = JSON.stringify({ ...body, stream: true }, null, 2);
  return `import OpenAI from "openai";

const client = new OpenAI({ baseURL: "${origin}/v1", apiKey: ${secret} });
const stream = await client.chat.completions.create(${options});
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
}
`;
}
