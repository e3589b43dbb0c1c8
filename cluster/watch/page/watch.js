// What the page does: asks for the stream with the token, and shows what comes.

import { Lines, drawDue, short } from "./charts.js";
import { Faults } from "./faults.js";
import { Ring, colourOf } from "./ring.js";
import { messages, pathOf } from "./stream.js";

const find = (id) => document.getElementById(id);
const EVENTS_SHOWN = 300;
const RECONNECT_MS = 1000;

const token = takeToken();
const flow = new Lines(find("flow"), { published: "--soft", delivered: "--accent", acknowledged: "--good" }, { shared: true });
const waits = new Lines(find("waits"), { draining: "--warn", backlog: "--accent" });
const ring = new Ring(find("ring"), (partition, hash) => explain({ hash }, `hash ${hash}`, partition));
let before = null;
let past = 0; // the moment that is shown, ms; 0 is now
let stop = new AbortController();

/** The token comes behind the #, which no browser sends to a server, and stays in this tab. */
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname + location.search);
  }
  return given ?? sessionStorage.getItem("token") ?? "";
}

async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { Authorization: `Bearer ${token}` } });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new Error(answer.status === 401 ? "the token is missing or wrong: open the address that ./sluice watch prints" : said.reason ?? answer.statusText);
}

function say(text, kind = "") {
  find("state").textContent = text;
  find("state").className = kind;
}

async function choose() {
  for (;;) {
    try {
      const known = await (await ask("/watch/subscriptions")).json();
      const all = Object.entries(known).flatMap(([topic, names]) => names.map((name) => [topic, name]));
      const asked = new URLSearchParams(location.search);
      find("chosen").replaceChildren(...all.map(([topic, name]) => {
        const option = document.createElement("option");
        option.textContent = `${topic} / ${name}`;
        option.value = JSON.stringify([topic, name]);
        option.selected = topic === asked.get("topic") && name === asked.get("subscription");
        return option;
      }));
      if (all.length) return;
      showMap(await (await ask("/watch/cluster")).json());
      say(`topics: ${short(Object.keys(known).length)}, no subscription yet`);
    } catch (error) {
      say(error.message, "bad");
    }
    await pause();
  }
}

function pause() { return new Promise((done) => setTimeout(done, RECONNECT_MS)); }

function watched() { return JSON.parse(find("chosen").value); }

async function follow() {
  const [topic, subscription] = watched();
  const mine = (stop = new AbortController());
  before = null;
  flow.clear();
  waits.clear();
  while (!mine.signal.aborted) {
    try {
      const query = new URLSearchParams({ topic, subscription });
      const answer = await ask(`/watch/events?${query}`, { signal: mine.signal });
      say("live", "good");
      for await (const [name, data] of messages(answer.body)) show(name, data);
      throw new Error("the stream has ended");
    } catch (error) {
      if (mine.signal.aborted) return;
      say(`${error.message}; trying again`, "bad");
      await pause();
    }
  }
}

function show(name, data) {
  if (name === "trouble") say(data.reason, "bad");
  else if (name === "events") showEvents(data);
  else if (name === "picture" && !past) showPicture(data);
}

/** The slider counts seconds back from now; the page shows what was recorded of that moment. */
async function lookBack() {
  const seconds = Number(find("back").value);
  const at = (past = seconds ? Date.now() + seconds * 1000 : 0);
  find("then").textContent = past ? new Date(past).toLocaleTimeString() : "now";
  ring.glow.clear();
  before = null;
  if (!past) return;
  try {
    const [topic, subscription] = watched();
    const picture = await (await ask(`/watch/past?${new URLSearchParams({ topic, subscription, at })}`)).json();
    if (at !== past) return;
    showPicture(picture);
    const { published, delivered, acknowledged } = picture.rates;
    find("then").textContent = `${new Date(at).toLocaleTimeString()}: ${short(published)} read, ${short(delivered)} delivered, ${short(acknowledged)} acknowledged a second`;
    say("the past");
  } catch (error) {
    if (at === past) say(error.message, "bad");
  }
}

function showPicture(picture) {
  const silent = picture.partitions.filter((part) => !part.answers).length;
  say(silent ? `${silent} of ${picture.partitions.length} partitions wait for an owner` : "live", silent ? "bad" : "good");
  ring.take(picture.partitions, Date.now());
  const { totals } = picture;
  if (before && picture.at > before.at) {
    flow.take(picture.at, picture.rates);
    waits.take(picture.at, { draining: totals.draining, backlog: totals.backlog });
  }
  before = picture;
  list(find("totals"), [
    ["backlog", totals.backlog], ["unacknowledged", totals.unacked], ["delayed", totals.delayed], ["draining", totals.draining],
    ["drained", totals.drained], ["moved", totals.moved], ["order checks", totals.checked], ["violations", totals.violations],
  ].map(([label, number]) => `${label} |${short(number)}`), (item, text) => {
    const [label, number] = text.split("|");
    item.replaceChildren(element("span", label), element("b", number));
    item.className = label.startsWith("violations") && number !== "0" ? "violation" : "";
  });
  showConsumers(picture);
  showDue(picture);
  showMap(picture);
}

function showConsumers(picture) {
  const sums = new Map();
  for (const part of picture.partitions) {
    for (const consumer of part.consumers ?? []) {
      const sum = sums.get(consumer.name) ?? [0, 0];
      sums.set(consumer.name, [sum[0] + consumer.unacked, sum[1] + consumer.delivered]);
    }
  }
  const rows = [...sums].sort().map(([name, [unacked, delivered]]) => JSON.stringify([name, `${short(delivered)} delivered, ${short(unacked)} held`]));
  list(find("consumers"), rows, (item, row) => {
    const [name, text] = JSON.parse(row);
    const patch = element("i", "");
    patch.style.background = colourOf(name);
    item.replaceChildren(patch, `${name}: ${text}`);
  });
}

function showDue(picture) {
  const slots = picture.due.flatMap(([, histogram]) => histogram);
  drawDue(find("due"), slots, picture.at);
  const sum = (key) => picture.partitions.reduce((total, part) => total + (part.buckets?.[key] ?? 0), 0);
  find("buckets").textContent = `${sum("live")} buckets live, ${sum("create")} sealed, ${sum("merge")} merged, ${sum("delete")} released`;
}

function showMap(picture) {
  const table = document.createElement("table");
  table.append(line("th", "actor", "state", "where"));
  for (const actor of picture.actors) {
    const row = line("td", actor.name, actor.problem || actor.state, actor.address ?? "");
    if (actor.problem || actor.state !== "running") row.className = "ill";
    table.append(row);
  }
  for (const [partition, ledgers] of Object.entries(picture.ledgers)) {
    const ledger = ledgers[ledgers.length - 1];
    if (ledger) table.append(line("td", `partition ${partition}, epoch ${picture.epochs[partition]}`, `ledger ${ledger.id} ${ledger.state}`, `on ${ledger.bookies.join(", ")}`));
  }
  for (const pool of picture.pools ?? []) {
    const states = Object.values(pool.workers);
    const busy = states.filter((state) => state !== "running").map((state) => `, one ${state}`).join("");
    const text = `${states.length} workers of ${pool.wanted.join(" to ")}${busy}, oldest ${short(pool.oldestAgeMs)} ms`;
    const row = line("td", `pool ${pool.name}`, text, pool.reason || `${short(pool.replaced)} replaced`);
    if (pool.reason) row.className = "ill";
    table.append(row);
    for (const [key, last] of Object.entries(pool.failures)) table.append(line("td", `key ${key}`, "its handler failed", last));
  }
  find("map").replaceChildren(table);
}

function showEvents(events) {
  const shown = find("events");
  for (const event of events) {
    const item = element("li", "");
    item.className = event.kind;
    item.append(element("time", new Date(event.at).toLocaleTimeString()), event.text);
    shown.prepend(item);
  }
  while (shown.children.length > EVENTS_SHOWN) shown.lastChild.remove();
}

async function explain(question, title, partition) {
  const [topic, subscription] = watched();
  const query = new URLSearchParams(question);
  const path = past ? `/watch/past?${new URLSearchParams({ topic, subscription, at: past, ...question })}` : `/admin/v2/persistent/${pathOf(topic)}/subscription/${encodeURIComponent(subscription)}/explain?${query}`;
  try {
    const rows = await (await ask(path)).json();
    // A key is where some of it is; with none of it anywhere, where it would be.
    const row = rows.find((one) => one.partition === partition) ?? rows.find((one) => one.pending || one.waiting || one.delayed)
      ?? rows.find((one) => one.home) ?? rows[0];
    const facts = document.createElement("dl");
    facts.append(element("dt", `${title}, partition ${row.partition}`), element("dd", row.verdict ?? ""));
    for (const reason of row.reasons ?? []) facts.append(element("dt", reason.gate), element("dd", `${reason.text}; until: ${reason.until ?? reason.unblocks ?? ""}`));
    for (const key of ["owner", "holder", "pending", "hash"]) if (row[key] !== undefined) facts.append(element("dt", key), element("dd", JSON.stringify(row[key])));
    find("answer").replaceChildren(facts);
  } catch (error) {
    find("answer").replaceChildren(element("p", error.message));
  }
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function line(kind, ...cells) {
  const row = document.createElement("tr");
  row.append(...cells.map((cell) => element(kind, cell)));
  return row;
}

/** Show one item a row, and touch only what is new: what is focused or selected stays so. */
function list(parent, rows, fill) {
  while (parent.children.length > rows.length) parent.lastChild.remove();
  rows.forEach((row, number) => {
    const item = parent.children[number] ?? parent.appendChild(document.createElement("li"));
    if (item.dataset.row !== row) {
      item.dataset.row = row;
      fill(item, row);
    }
  });
}

find("chosen").addEventListener("change", () => { stop.abort(); follow(); });
find("back").addEventListener("change", lookBack);
find("why").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = find("key").value;
  if (key) explain({ key }, `key ${key}`);
});
if (new URLSearchParams(location.search).has("faults")) new Faults(find("break-panel"), ask).run();
await choose();
follow();
