// Named checks of one client library, run in order; one line of JSON for each. As checks.py.

export const BASE = process.env.CLIENTS_URL;
export const V1 = `${BASE}/v1`;
export const KEY = process.env.CLIENTS_KEY ?? "none-needed-on-loopback";
const MODELS = JSON.parse(process.env.CLIENTS_MODELS);
export const MODEL = MODELS.generate;
export const EMBED = MODELS.embed;
export const AUDIO = MODELS.audio;
export const QUESTION = "What is Flotilla?";

const checks = [];

export function check(name, run, needs = "generate") {
  checks.push({ name, run, needs });
}

export function assert(condition, message = "the condition is false") {
  if (!condition) throw new Error(message);
}

export async function raises(kind, call) {
  try {
    await call();
  } catch (error) {
    if (error instanceof kind) return error;
    throw error;
  }
  throw new Error(`no ${kind.name} was raised`);
}

// A second of sound: a 440 Hz square wave.
export function wav() {
  const samples = 16_000;
  const data = Buffer.alloc(44 + 2 * samples);
  data.write("RIFF", 0);
  data.writeUInt32LE(36 + 2 * samples, 4);
  data.write("WAVEfmt ", 8);
  data.writeUInt32LE(16, 16);
  data.writeUInt16LE(1, 20);
  data.writeUInt16LE(1, 22);
  data.writeUInt32LE(samples, 24);
  data.writeUInt32LE(2 * samples, 28);
  data.writeUInt16LE(2, 32);
  data.writeUInt16LE(16, 34);
  data.write("data", 36);
  data.writeUInt32LE(2 * samples, 40);
  for (let n = 0; n < samples; n++) data.writeInt16LE(Math.floor((n * 880) / samples) % 2 ? -8000 : 8000, 44 + 2 * n);
  return data;
}

export async function main() {
  let failed = false;
  for (const { name, run, needs } of checks) {
    const began = Date.now();
    let outcome = "skipped";
    let detail = "";
    if (needs in MODELS) {
      try {
        await run();
        outcome = "ok";
      } catch (error) {
        failed = true;
        outcome = "failed";
        detail = `${error.name}: ${error.message}`;
        console.error(error);
      }
    }
    console.log(JSON.stringify({ check: name, outcome, seconds: (Date.now() - began) / 1000, detail }));
  }
  process.exit(failed ? 1 : 0);
}
