// The web console: pages drawn from the REST API. Whatever an agent, a caller or a site wrote is put in as text, never as markup.
"use strict";

const page = document.getElementById("page");
const note = document.getElementById("note");
const signOut = document.getElementById("sign-out");
const KEY = "agent3.key";

// ---- elements

// What cannot be seen, or turns the order of what can, is shown by its number: else an approval could show another text than is sent.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;
const visible = (text) => text.replace(HIDDEN, (found) => `\\u{${found.codePointAt(0).toString(16)}}`);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(3)) {
    if (child !== null && child !== undefined) element.append(child instanceof Node ? child : visible(String(child)));
  }
  return element;
}

function table(caption, columns, rows) {
  if (!rows.length) return make("p", { class: "dim" }, `${caption}: none.`);
  const head = columns.map(([title, , kind]) => make("th", { scope: "col", class: kind }, title));
  const body = rows.map((row) => make("tr", {}, columns.map(([, cell, kind]) => make("td", { class: kind }, cell(row)))));
  const grid = make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, head)), make("tbody", {}, body));
  return make("div", { class: "scroll" }, grid);
}

function field(title, name, attributes = {}, value = "") {
  const input = make("input", { name, ...attributes });
  input.value = value;
  return make("label", {}, title, input);
}

function choice(title, name, options, value = "") {
  const select = make("select", { name }, options.map(([key, text]) => make("option", { value: key }, text)));
  select.value = value;
  return make("label", {}, title, select);
}

function details(record) {
  const shown = Object.entries(record).filter(([, value]) => value !== null && value !== "");
  const text = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));
  return make("dl", {}, shown.map(([name, value]) => [make("dt", {}, name), make("dd", {}, name === "at" ? when(value) : text(value))]));
}

const json = (value) => make("pre", {}, typeof value === "string" ? value : JSON.stringify(value, null, 2));
const when = (seconds) => new Date(seconds * 1000).toLocaleString();
const milliseconds = (seconds) => (seconds === null || seconds === undefined ? "" : `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`);
const money = (dollars) => (dollars ? `$${dollars.toFixed(4)}` : "");
const link = (text, ...path) => make("a", { href: `#/${path.map(encodeURIComponent).join("/")}` }, text);
const state = (text, good) => make("span", { class: good === null ? null : good ? "good" : "bad" }, text);

// ---- the gateway

class Refused extends Error {
  constructor(status, answer) {
    super((answer.error && answer.error.message) || answer.error || `The gateway answered ${status}.`);
    this.status = status;
    this.answer = answer;
  }
}

async function ask(path, body, method) {
  const headers = { Accept: "application/json" };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const how = { method: method || (body === undefined ? "GET" : "POST"), headers, cache: "no-store", redirect: "error" };
  if (body !== undefined) how.body = JSON.stringify(body);
  const answer = await fetch(path, how);
  const text = await answer.text();
  let value;
  try {
    value = text ? JSON.parse(text) : {};
  } catch {
    throw new Refused(answer.status, { error: text.slice(0, 300) });
  }
  // A call that failed is an answer as well: it says so itself.
  if (!answer.ok && !("success" in value)) throw new Refused(answer.status, value);
  return value;
}

const query = (values) => new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined));

// ---- pages

const pages = {
  async agents(id) {
    if (id) return oneAgent(id);
    const search = new URLSearchParams(location.hash.split("?")[1] || "").get("query") || "";
    const found = await ask(`/v1/agents?${query({ query: search, limit: 50 })}`);
    const form = make("form", { role: "search", onsubmit: (event) => {
      event.preventDefault();
      location.hash = `#/agents?${query({ query: event.target.elements.query.value })}`;
    } }, field("What do you need?", "query", { type: "search" }, search), make("button", {}, "Search"));
    return [make("h1", {}, "Agents"), form, table(search ? `Agents for “${search}”` : "Agents, the first 50", [
      ["Agent", (agent) => [link(agent.name || agent.id, "agents", agent.id), agent.name && agent.name !== agent.id ? make("div", { class: "dim" }, agent.id) : null]],
      ["", (agent) => state(agent.status, agent.status === "active")],
      ["What it does", (agent) => agent.description],
      ["Capabilities", (agent) => agent.capabilities.map((one) => one.name).join(", ")],
      ["Rating", (agent) => (agent.rating ? `${agent.rating.mean ?? agent.rating}` : ""), "number"],
    ], found.agents)];
  },

  async try(agent, capability) {
    const result = make("section", { "aria-live": "polite" });
    const known = (await ask(`/v1/agents?${query({ limit: 50 })}`)).agents;
    const form = make("form", { onsubmit: async (event) => {
      event.preventDefault();
      const { agentId, capability: which, message } = event.target.elements;
      const body = { agentId: agentId.value.trim(), ...said(message.value) };
      if (which.value.trim()) body.capability = which.value.trim();
      result.replaceChildren("Calling …");
      await answered(result, () => ask("/v1/call", body));
    } },
    field("Agent", "agentId", { required: true, list: "agents" }, agent || ""),
    make("datalist", { id: "agents" }, known.map((one) => make("option", { value: one.id }, one.name))),
    field("Capability (optional)", "capability", {}, capability || ""),
    make("label", {}, "In plain words, or a JSON object", make("textarea", { name: "message", rows: 3 })),
    make("button", {}, "Call"));
    return [make("h1", {}, "Try"), form, result];
  },

  async calls(id) {
    if (id) {
      const record = await ask(`/v1/calls/${encodeURIComponent(id)}/record`);
      return [make("h1", {}, "Call ", id), (record.turns || [record]).map((turn) => [make("h2", {}, `Turn ${turn.turn ?? 1}`), details(turn)]).flat()];
    }
    const chosen = Object.fromEntries(new URLSearchParams(location.hash.split("?")[1] || ""));
    const found = await ask(`/v1/calls?${query({ limit: 50, ...chosen })}`);
    const form = make("form", { onsubmit: (event) => {
      event.preventDefault();
      location.hash = `#/calls?${query(Object.fromEntries(new FormData(event.target)))}`;
    } },
    field("Agent", "agent", {}, chosen.agent), field("Caller", "caller", {}, chosen.caller),
    choice("Outcome", "status", [["", "all"], ["done", "done"], ["failed", "failed"], ["needs", "waits for an answer"], ["working", "under way"]], chosen.status || ""),
    make("button", {}, "Show"));
    const { jobs } = chosen.cursor ? { jobs: [] } : await ask("/v1/calls/open");
    const place = make("div", { "aria-live": "polite" });
    const open = jobs.length ? [make("h2", {}, "Jobs that are open"), place, table("Working, or waiting for an answer", [
      ["Since", (job) => when(job.created)],
      ["Caller", (job) => job.caller],
      ["Agent", (job) => link(job.agent, "agents", job.agent)],
      ["Capability", (job) => job.capability],
      ["Status", (job) => state(job.status, null)],
      ["", (job) => make("button", { onclick: () => answered(place, async () => {
        const now = await ask(`/v1/calls/${encodeURIComponent(job.id)}/cancel`, {});
        return { job: job.id, status: now.status };
      }) }, "Cancel")],
    ], jobs)] : [];
    const older = found.next ? make("p", {}, make("a", { href: `#/calls?${query({ ...chosen, cursor: found.next })}` }, "Older calls")) : null;
    return [make("h1", {}, "Calls"), ...open, form, table("Calls, newest first", [
      ["When", (call) => link(when(call.at), "calls", call.id)],
      ["Caller", (call) => call.caller],
      ["Agent", (call) => link(call.agent, "agents", call.agent)],
      ["Capability", (call) => call.capability],
      ["By", (call) => [call.door, call.servedBy ? `, served by ${call.servedBy}` : ""]],
      ["Outcome", (call) => [state(call.status, ["needs", "working"].includes(call.status) ? null : call.status === "done"), call.code ? ` ${call.code}` : "", call.message ? make("div", { class: "dim" }, call.message) : null]],
      ["Time", (call) => milliseconds(call.seconds), "number"],
      ["Cost", (call) => money(call.cost), "number"],
    ], found.calls), older];
  },

  async costs() {
    const tables = await Promise.all(["agent", "caller", "day"].map(async (by) => {
      const { statistics } = await ask(`/v1/calls/stats?${query({ by })}`);
      return table(`By ${by}, the last seven days`, [
        [by[0].toUpperCase() + by.slice(1), (row) => row[by] || "(not found, or hidden from the caller)"],
        ["Calls", (row) => row.calls, "number"],
        ["Failed", (row) => row.failed || "", "number"],
        ["Refused", (row) => row.refused || "", "number"],
        ["Median", (row) => milliseconds(row.p50), "number"],
        ["95 %", (row) => milliseconds(row.p95), "number"],
        ["Tokens", (row) => row.tokens || "", "number"],
        ["Cost", (row) => money(row.cost), "number"],
      ], statistics);
    }));
    return [make("h1", {}, "Calls and costs"), ...tables];
  },
};

pages.approvals = async (id) => {
  if (!id) {
    const { approvals } = await ask("/v1/approvals");
    return [make("h1", {}, "Approvals"), table("Calls that wait for approval", [
      ["Asked", (one) => link(when(one.asked), "approvals", one.id)],
      ["Who", (one) => one.who],
      ["What", (one) => `${one.agent}: ${one.capability}`],
      ["Why it needs approval", (one) => one.why],
      ["Until", (one) => when(one.until)],
      ["", (one) => (one.youMayDecide ? "You can decide." : "Another person decides.")],
    ], approvals)];
  }
  // Decided only where the whole call is seen.
  const path = `/v1/approvals/${encodeURIComponent(id)}`;
  const one = await ask(path);
  const decide = (text, what) => make("button", { type: "button", onclick: () => act(() => ask(`${path}/${what}`, {})) }, text);
  return [make("h1", {}, `${one.agent}: ${one.capability}`), details({ ...one, asked: when(one.asked), until: when(one.until) }),
    one.youMayDecide ? make("p", {}, decide("Approve", "approve"), " ", decide("Deny", "deny")) : null];
};

async function oneAgent(id) {
  const path = `/v1/agents/${encodeURIComponent(id)}`;
  const agent = await ask(path);
  const changes = await ask(`${path}/changes`).catch(() => ({ hash: null })); // for operators only
  const parts = [make("h1", {}, agent.name || id), make("p", {}, agent.description), details({
    id: agent.id, status: agent.status, provider: agent.provider, version: agent.version, tags: (agent.tags || []).join(", "),
    rating: agent.rating && agent.rating.count ? `${agent.rating.mean} of 5, by ${agent.rating.count}` : "none yet",
  })];
  if (changes.hash) {
    parts.push(make("h2", {}, "Changed since it was approved"), make("p", {}, changes.why || ""), table("Changes", [
      ["Where", (change) => change.path], ["Before", (change) => JSON.stringify(change.before)], ["Now", (change) => JSON.stringify(change.now)],
    ], changes.changes), make("button", { type: "button", onclick: () => act(() => ask(`${path}/approve`, { hash: changes.hash })) }, "Approve this change"));
  }
  for (const one of agent.capabilities) {
    parts.push(make("h2", {}, one.name), make("p", {}, one.description, " ", link("Try it", "try", id, one.name)), json(one.inputSchema));
  }
  return parts;
}

// A JSON object is the input itself; everything else is a message.
function said(text) {
  if (text.trim().startsWith("{")) {
    try { return { input: JSON.parse(text) }; } catch { /* braces in a sentence */ }
  }
  return { message: text };
}

// Shows what came of a call; a question is answered in place.
async function answered(place, send) {
  let value;
  try {
    value = await send();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    place.replaceChildren(make("p", { class: "bad" }, error.message));
    return;
  }
  if (value.questions) {
    place.replaceChildren(make("form", { onsubmit: async (event) => {
      event.preventDefault();
      const answers = Object.fromEntries(value.questions.map(({ id, schema }) => [id, read(event.target.elements[id], schema)]));
      await answered(place, () => ask(`/v1/calls/${encodeURIComponent(value.job)}/answer`, { answers }));
    } }, value.questions.map(({ id, text, schema }) => (schema && schema.enum
      ? choice(text, id, schema.enum.map((one) => [String(one), String(one)]), String(schema.enum[0]))
      : field(text, id, { required: true }))), make("button", {}, "Answer")));
    return;
  }
  const good = value.success !== false;
  place.replaceChildren(
    make("p", {}, state(good ? "done" : value.errorCode || "failed", good), ` in ${(value.metadata?.responseTime ?? 0).toFixed(0)} ms`),
    good ? json(value.result ?? null) : make("p", { class: "bad" }, value.error || ""),
    make("details", {}, make("summary", {}, "The whole answer"), json(value)),
  );
}

function read(input, schema = {}) {
  const kind = schema.type;
  if (kind === "number" || kind === "integer") return Number(input.value);
  if (kind === "boolean") return /^(true|yes|y|sí|si|1)$/i.test(input.value.trim());
  if (kind === "object" || kind === "array") {
    try { return JSON.parse(input.value); } catch { return input.value; }
  }
  return input.value;
}

async function act(deed) {
  try {
    await deed();
  } catch (error) {
    note.textContent = error.message;
    return;
  }
  await draw();
}

// ---- signing in and moving about

function signIn(message) {
  signOut.hidden = true;
  page.replaceChildren(make("h1", {}, "Sign in"), make("p", {}, message), make("form", { onsubmit: (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, event.target.elements.key.value.trim());
    draw();
  } }, field("Key of a client", "key", { type: "password", required: true, autocomplete: "off" }), make("button", {}, "Sign in")));
}

let drawing = 0;
async function draw() {
  const turn = ++drawing;
  const [name, ...rest] = location.hash.replace(/^#\//, "").split("?")[0].split("/").map(decodeURIComponent);
  for (const entry of document.querySelectorAll("nav a")) {
    if (entry.hash === `#/${name}`) entry.setAttribute("aria-current", "page");
    else entry.removeAttribute("aria-current");
  }
  try {
    const drawn = await (pages[name] || pages.agents)(...rest.filter(Boolean));
    if (turn !== drawing) return; // somebody went on meanwhile
    note.textContent = "";
    signOut.hidden = !sessionStorage.getItem(KEY);
    page.replaceChildren(...drawn.flat().filter((part) => part !== null && part !== undefined));
  } catch (error) {
    if (turn !== drawing) return;
    if (error.status === 401) {
      const known = sessionStorage.getItem(KEY);
      sessionStorage.removeItem(KEY);
      signIn(known ? "This key is not valid." : "This gateway requires a key.");
      return;
    }
    note.textContent = error instanceof Refused ? error.message : `The gateway does not answer: ${error.message}`;
    page.replaceChildren(make("button", { type: "button", onclick: draw }, "Try again"));
  }
}

signOut.addEventListener("click", () => { sessionStorage.removeItem(KEY); draw(); });
addEventListener("hashchange", () => { draw().then(() => { page.focus({ preventScroll: true }); scrollTo(0, 0); }); });
if (!location.hash) history.replaceState(null, "", "#/agents");
draw();
