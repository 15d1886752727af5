/** Figures as text. A value that is not known is a dash. */

const NONE = "–";
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const ONE = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

const known = (value) => typeof value === "number" && Number.isFinite(value);

/** 1204331 -> "1,204,331". */
export function count(value) {
  return known(value) ? WHOLE.format(value) : NONE;
}

/** A rate: one decimal below 100, then whole, then thousands. */
export function rate(value) {
  if (!known(value)) return NONE;
  if (value < 100) return ONE.format(value);
  if (value < 1e4) return WHOLE.format(value);
  if (value < 1e6) return `${ONE.format(value / 1e3)}k`;
  return value < 1e9 ? `${ONE.format(value / 1e6)}M` : `${ONE.format(value / 1e9)}G`;
}

/** A number of tokens: whole below 10,000, then as a rate. */
export function amount(value) {
  return value < 1e4 ? count(value) : rate(value);
}

/** 0.0042 -> "4 ms", 0.41 -> "410 ms", 9.8 -> "9.8 s", 75 -> "1 min 15 s". */
export function duration(value) {
  if (!known(value)) return NONE;
  if (value < 0.9995) return value > 0 && value < 0.01 ? `${ONE.format(value * 1e3)} ms` : `${Math.round(value * 1e3)} ms`;
  if (value < 59.5) return `${(value < 9.95 ? ONE : WHOLE).format(value)} s`;
  value = Math.round(value);
  const two = (large, name, small, other) => `${Math.floor(value / large)} ${name} ${Math.floor((value % large) / small)} ${other}`;
  if (value < 3600) return two(60, "min", 1, "s");
  return value < 86400 ? two(3600, "h", 60, "min") : two(86400, "d", 3600, "h");
}

/** A duration without tenths. */
export function whole(value) {
  return value < 59.5 ? `${Math.max(1, Math.round(value))} s` : duration(value);
}

/** An age, in tenths of a second while it is short. */
export function age(value) {
  if (!known(value)) return NONE;
  return value < 60 ? `${ONE.format(Math.max(0, value))} s` : duration(value);
}

/** 0.61 -> "61 %". */
export function percent(value) {
  return known(value) ? `${Math.round(value * 100)} %` : NONE;
}

/** 1536 -> "1.5 KiB". */
export function bytes(value) {
  if (!known(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit += 1) value /= 1024;
  return `${unit ? ONE.format(value) : WHOLE.format(value)} ${units[unit]}`;
}

/** Unix seconds -> "12:04:10", with the day where it is not today. */
export function clock(at, millis = false) {
  if (!known(at)) return NONE;
  const date = new Date(at * 1e3);
  const [day, time] = date.toLocaleString("sv").split(" "); // Swedish: as in ISO 8601
  const exact = millis ? `${time}.${String(date.getMilliseconds()).padStart(3, "0")}` : time;
  return new Date().toDateString() === date.toDateString() ? exact : `${day} ${exact}`;
}

/** "3 jobs", "1 job". */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** A job's id, short enough for a table. The command line accepts it as a prefix. */
export function shortId(id) {
  return id.length > 16 ? `${id.slice(0, 15)}…` : id;
}

/** The address of the list of jobs that a filter matches. */
export function jobsAt(filter, job = "") {
  const query = new URLSearchParams({ ...(filter && { filter }), ...(job && { job }) });
  return query.size ? `#jobs?${query}`.replaceAll("%3A", ":") : "#jobs";
}

/** The same, of the jobs of all tenants, which operators may list. */
export function allJobsAt(filter, job = "") {
  return jobsAt(`${filter} tenant:*`.trim(), job);
}
