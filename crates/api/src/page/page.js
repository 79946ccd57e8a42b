"use strict";
// Text goes into the page only as text, never as markup: names come from elsewhere.
const at = id => document.getElementById(id);
let csrf = document.querySelector("meta[name=csrf]").content;
const number = new Intl.NumberFormat("en");

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function fill(id, rows) {
  const body = at(id).tBodies[0];
  body.replaceChildren(...rows.map(cells => {
    const row = element("tr");
    for (const cell of cells) {
      const isNumber = typeof cell === "number";
      row.append(element("td", isNumber ? number.format(cell) : cell ?? "–", isNumber ? "number" : ""));
    }
    return row;
  }));
}

// Two places: what a form met stays until the next one, what the connection met until it is back.
function report(message, id = "alert") {
  if (at(id).textContent === (message ?? "")) return;
  at(id).hidden = !message;
  at(id).textContent = message ?? "";
}
const lost = message => report(message, "lost");

const said = error => `${error.object}: ${error.problem}${error.seen ? ` (${error.seen})` : ""}; ${error.remedy}`;

async function ask(path, options = {}) {
  return answered(await fetch(path, options));
}

// A request that changes something.
async function order(path, options = {}) {
  const send = () => fetch(path, { ...options, method: "POST", headers: { ...options.headers, "x-natrix-csrf": csrf } });
  const answer = await send();
  if (answer.status !== 403) return answered(answer);
  // A new process of the API has a new key, and this page a token of the old one.
  const page = await fetch("./").then(page => page.text());
  const before = csrf;
  csrf = /name="csrf" content="([0-9a-f]+)"/.exec(page)?.[1] ?? csrf;
  return answered(csrf === before ? answer : await send());
}

async function answered(answer) {
  const body = await answer.json();
  if (answer.ok) return body;
  const faults = (body.faults ?? []).map(fault => `\n${fault.file}:${fault.line ?? ""} ${said(fault)}`);
  throw new Error(said(body.error) + faults.join(""));
}

const isGiven = ([, value]) => value !== "" && value !== null && value !== undefined;
const query = fields => new URLSearchParams(Object.entries(fields).filter(isGiven)).toString();
const percent = ratio => `${(100 * ratio).toFixed(1)} %`;
const sum = each => each.udp + each.tcp + each.icmp;
const counted = (count, thing, things = `${thing}s`) => `${number.format(count)} ${count === 1 ? thing : things}`;
const effect = name => name.replaceAll("_", " ");
const range = own => `${own.first_port}–${own.last_port}`;
const size = own => own.last_port - own.first_port + 1;
// How full a block or slice is: as its fullest transport, since each has all of the ports.
const fullest = own => Math.max(...Object.values(own.ports_used)) / size(own);
const perTransport = each => `${number.format(each.udp)} UDP, ${number.format(each.tcp)} TCP, ${number.format(each.icmp)} ICMP`;
// The IPv4 address beside an IPv6 host is a number of its worker, and nobody's address.
const hostText = host => host.inner ? `${host.address} ${host.inner}` : host.address + (host.prefix_length < 128 ? `/${host.prefix_length}` : "");
const subscriberText = subscriber => subscriber.host ? hostText(subscriber.host) : subscriber.address;
const portOf = endpoint => endpoint.slice(endpoint.lastIndexOf(":") + 1);
const internalText = mapping => !mapping.host ? mapping.internal
  : mapping.host.inner ? `${hostText(mapping.host)}:${portOf(mapping.internal)}` : `[${mapping.host.address}]:${portOf(mapping.internal)}`;

// Plots of the last ten minutes. Each: element, and series of label, colour and value.
const KEPT = 600;
const plots = [
  { id: "plot-packets", series: [["#2a7fd4", one => one.packets_per_second], ["#d4502a", one => one.drops_per_second]] },
  { id: "plot-sessions", series: [["#2a7fd4", one => one.sessions]] },
  { id: "plot-mappings", series: [["#2a7fd4", one => one.mappings_created_per_second]] },
].map(plot => ({ ...plot, values: [[], ...plot.series.map(() => [])], drawn: null }));

function draw(status) {
  for (const plot of plots) {
    plot.values[0].push(Date.now() / 1000);
    plot.series.forEach(([, value], place) => plot.values[place + 1].push(value(status)));
    for (const one of plot.values) if (one.length > KEPT) one.shift();
    const size = { width: at(plot.id).clientWidth, height: 160 };
    if (plot.drawn) {
      if (plot.drawn.width !== size.width) plot.drawn.setSize(size);
      plot.drawn.setData(plot.values);
      continue;
    }
    const ink = getComputedStyle(document.body).color;
    const axis = { stroke: ink, grid: { stroke: "#8884" }, ticks: { stroke: "#8888" } };
    plot.drawn = new uPlot({
      ...size, scales: { x: { time: true } }, legend: { show: false }, cursor: { show: false },
      series: [{}, ...plot.series.map(([stroke]) => ({ stroke, width: 2 }))],
      axes: [axis, { ...axis, size: 70 }],
    }, plot.values, at(plot.id));
  }
}

// The ink of axes follows the colours of the page.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const plot of plots) {
    plot.drawn?.destroy();
    plot.drawn = null;
  }
});

function longest(rounds) {
  const last = (rounds ?? []).findLastIndex(count => count > 0);
  if (last < 0) return null;
  return last === rounds.length - 1 ? `> ${number.format(2 ** (last - 1))} µs` : `≤ ${number.format(2 ** last)} µs`;
}

function show(status) {
  at("instance").textContent = `${status.version}, ${status.state}, up ${Math.round(status.uptime_us / 1e6)} s`;
  const log = status.event_log;
  const routing = status.announcement;
  const figures = {
    "packets a second": number.format(status.packets_per_second),
    "Mbit/s": number.format(Math.round(status.bits_per_second / 1e6)),
    "drops a second": number.format(status.drops_per_second),
    "new mappings a second": number.format(status.mappings_created_per_second),
    sessions: number.format(status.sessions),
    mappings: number.format(status.mappings),
    subscribers: number.format(status.subscribers),
    ...(routing ? { routing: routing.drained_us === null ? counted(routing.prefixes, "prefix", "prefixes") : "drained" } : {}),
    "log": !log ? "none" : log.failing ? "failing" : `${(log.lag_us / 1e6).toFixed(1)} s behind`,
  };
  at("figures").replaceChildren(...Object.entries(figures).map(([name, value]) => {
    const pair = element("div");
    pair.append(element("dt", name), element("dd", value));
    return pair;
  }));
  fill("workers", status.workers.map(worker => [
    String(worker.worker), worker.cpu === null ? "any" : String(worker.cpu), percent(worker.busy_ratio), longest(worker.rounds_by_time),
    worker.packets_received, worker.packets_forwarded, worker.packets_dropped, worker.sessions,
  ]));
  showRouting(status);
  draw(status);
}

const left = now => [counted(now.packets_per_second, "packet") + " a second", counted(now.subscribers, "subscriber"),
  counted(now.mappings, "mapping"), counted(now.sessions, "session")].join(", ");

function announced(routing) {
  if (!routing) return "This instance announces no pools to the kernel ([routing] kernel), so there is nothing to withdraw.";
  if (routing.drained_us !== null) return `Drained for ${number.format(Math.round(routing.drained_us / 1e6))} s: no pool is announced.`;
  if (routing.withheld) return `No pool is announced: ${effect(routing.withheld)}.`;
  return `${counted(routing.prefixes, "prefix of the pools is", "prefixes of the pools are")} announced.`;
}

function showRouting(status) {
  if (!at("drain")) return;
  const routing = status.announcement;
  at("announced").textContent = announced(routing);
  at("left").textContent = `${routing && routing.drained_us !== null ? "Left" : "Now"}: ${left(status)}.`;
  // Both stay enabled, so that neither loses the focus; a second drain changes nothing.
  at("drain-begin").disabled = at("drain-undo").disabled = !routing;
}

// The first `max` objects of a list, and whether the list has no others. Only the last page has no
// cursor; any other may have few objects, or none.
async function listed(path, conditions, max) {
  const objects = [];
  let cursor = "";
  while (cursor !== null && objects.length < max) {
    const limit = Math.min(1024, max - objects.length);
    const page = await ask(`api/v1/${path}?${query({ ...conditions, limit, cursor })}`);
    objects.push(...page.objects);
    cursor = page.cursor;
  }
  return { objects, isAll: cursor === null };
}

// Addresses on the map. More are reached by the search.
const MAP_MAX = 4096;
let pools = new Map();

async function mapped() {
  const addresses = await listed("pools/addresses", {}, MAP_MAX);
  at("map-more").hidden = addresses.isAll;
  return addresses.objects;
}

async function refresh() {
  const [listed, drops, addresses] = await Promise.all([ask("api/v1/pools"), ask("api/v1/drops"), mapped()]);
  pools = new Map(listed.objects.map(pool => [pool.name, pool]));
  fill("pools", listed.objects.map(pool => [
    pool.draining ? `${pool.name} (draining)` : pool.name, pool.allocation, pool.addresses, pool.subscribers,
    sum(pool.ports_used), sum(pool.ports_held), pool.ports_leased, percent(pool.utilisation_ratio),
  ]));
  const rows = drops.objects.filter(drop => drop.packets > 0).sort((a, b) => b.packets - a.packets);
  fill("drops", rows.map(drop => [drop.reason, drop.packets, drop.packets_per_second, drop.description, drop.remedy]));
  map(addresses);
}

const level = ratio => ratio === 0 ? 0 : ratio < 0.5 ? 1 : ratio < 0.8 ? 2 : ratio < 0.95 ? 3 : 4;

function box(text, ratio, act) {
  const made = element("button", undefined, `level${level(ratio)}`);
  made.type = "button";
  made.tabIndex = -1;
  made.ariaLabel = text;
  made.title = text;
  // The colour says it roughly, the height of the filling exactly; a little is seen of the least use.
  made.style.setProperty("--full", `${ratio === 0 ? 0 : Math.max(100 * ratio, 12)}%`);
  made.addEventListener("click", () => act().catch(error => report(error.message)));
  return made;
}

// A map of boxes is one stop of Tab: the box that had the focus last. Arrow keys, Home and End reach
// the others.
function fillMap(id, content) {
  const had = at(id).contains(document.activeElement);
  const before = at(id).querySelector("button[tabindex='0']")?.dataset.address;
  at(id).replaceChildren(...content);
  const boxes = [...at(id).querySelectorAll("button")];
  const stop = boxes.find(one => before && one.dataset.address === before) ?? boxes[0];
  if (stop) stop.tabIndex = 0;
  if (had) stop?.focus();
}

// The box of the next row that is nearest to this one; the rows come in order.
function ofNextRow(from, boxes) {
  const place = from.getBoundingClientRect();
  const first = boxes.findIndex(one => one.getBoundingClientRect().top !== place.top);
  if (first < 0) return undefined;
  const { top } = boxes[first].getBoundingClientRect();
  const after = boxes.findIndex((one, index) => index > first && one.getBoundingClientRect().top !== top);
  const away = one => Math.abs(one.getBoundingClientRect().left - place.left);
  return boxes.slice(first, after < 0 ? undefined : after).reduce((near, one) => away(one) < away(near) ? one : near);
}

const reached = {
  ArrowLeft: (boxes, place) => boxes[place - 1],
  ArrowRight: (boxes, place) => boxes[place + 1],
  ArrowUp: (boxes, place) => ofNextRow(boxes[place], boxes.slice(0, place).reverse()),
  ArrowDown: (boxes, place) => ofNextRow(boxes[place], boxes.slice(place + 1)),
  Home: boxes => boxes[0],
  End: boxes => boxes.at(-1),
};

for (const container of ["map", "blocks"].map(at).filter(Boolean)) {
  container.addEventListener("focusin", event => {
    for (const one of container.querySelectorAll("button[tabindex='0']")) one.tabIndex = -1;
    event.target.tabIndex = 0;
  });
  container.addEventListener("keydown", event => {
    if (!Object.hasOwn(reached, event.key) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const boxes = [...container.querySelectorAll("button")];
    reached[event.key](boxes, boxes.indexOf(event.target))?.focus();
  });
}

let drawn = "";

function map(addresses) {
  const key = addresses.map(one => `${one.pool} ${one.address} ${percent(one.utilisation_ratio)}`).join();
  // Unchanged boxes stay.
  if (key === drawn) return;
  drawn = key;
  const byPool = Map.groupBy(addresses, one => one.pool);
  fillMap("map", [...byPool].flatMap(([pool, own]) => {
    const boxes = element("div", undefined, "boxes");
    boxes.append(...own.map(one => {
      const made = box(`${one.address} of ${pool}, ${percent(one.utilisation_ratio)} used`, one.utilisation_ratio, () => users(one));
      made.dataset.address = one.address;
      return made;
    }));
    return [element("h4", pool), boxes];
  }));
}

// Subscribers of an address that are shown.
const USERS_MAX = 1000;

async function users(one) {
  const size = pools.get(one.pool)?.block_size;
  const used = `${counted(sum(one.ports_used), "port")} in use, ${number.format(sum(one.ports_held))} of them held down`;
  const blocks = size ? `; ${counted(one.ports_leased / size, "block")} of ${number.format(size)} ports leased` : "";
  at("chosen").textContent = `${one.address} of ${one.pool}: ${used}${blocks}`;
  // Who has them is for the role audit.
  if (!at("address")) return;
  const users = await listed("subscribers", { external: one.address, case: at("case").value }, USERS_MAX);
  const own = users.objects.flatMap(subscriber => subscriber.subscriber_ports
    .filter(ports => ports.external_address === one.address).map(ports => ({ ...ports, subscriber })));
  own.sort((a, b) => a.first_port - b.first_port);
  fill("address", users.objects.map(subscriber => [
    subscriberText(subscriber), subscriber.vrf, subscriber.pool, sum(subscriber.mappings),
    own.filter(ports => ports.subscriber === subscriber).map(ports => `${range(ports)} (${percent(fullest(ports))})`).join(", ") || null,
  ]));
  const more = users.isAll ? "" : `; the first ${number.format(USERS_MAX)} subscribers`;
  at("chosen").textContent += more;
  fillMap("blocks", own.map(ports => {
    const who = subscriberText(ports.subscriber);
    const text = `${ports.kind} ${range(ports)}: ${who} of ${ports.subscriber.vrf}, ${percent(fullest(ports))} used (${perTransport(ports.ports_used)})`;
    return box(text, fullest(ports), async () => search(who));
  }));
  at("blocks-title").hidden = own.length === 0;
}

function onSubmit(id, act) {
  at(id)?.addEventListener("submit", event => {
    event.preventDefault();
    report(null);
    act(event.submitter).catch(error => report(error.message));
  });
}

function search(text) {
  if (!at("endpoint")) return;
  at("endpoint").value = text;
  at("endpoint").focus();
}

// The log is exact to the millisecond, and a port may change hands within a second.
const moment = text => text.replace("T", " ").replace(/(\.\d{3})\d*Z$/, "$1Z").replace("Z", " UTC");
const ended = one => one.until === null ? "and still has it by the last record"
  : `until ${one.until_exact ? "" : "at most "}${moment(one.until)}${one.ended_by_restart ? " (a restart)" : ""}`;

// What the log says of a holder, in words.
function held(one) {
  const what = { mapping: "a mapping", static: "a static mapping", flow: "a session on a shared port", block: "a port block", slice: "a slice by formula" }[one.what] ?? one.what;
  if (!one.since) {
    const alone = one.by_formula_alone ? "if that configuration was in use, which no log shows" : "while that configuration is in use";
    return `has ${what}, ${alone}`;
  }
  const remote = one.remote_address ? `, towards ${one.remote_address}:${one.remote_port}` : "";
  const since = `${one.since_exact === false ? "since some moment in the two seconds from" : "since"} ${moment(one.since)}`;
  return `${one.certain === false ? "may have had" : "had"} ${what}${one.pool ? ` of pool ${one.pool}` : ""}${remote} ${since} ${ended(one)}`;
}

function rowOfThen(one) {
  const ports = one.first_port === one.last_port ? one.first_port : range(one);
  const inside = one.inner_address ?? one.subscriber;
  const internal = one.internal_port === null ? null : inside.includes(":") ? `[${inside}]:${one.internal_port}` : `${inside}:${one.internal_port}`;
  const holder = one.inner_address ? `${one.subscriber} ${one.inner_address}` : one.subscriber;
  return [holder, one.realm, `${one.protocol ? `${one.protocol} ` : ""}${one.external_address}:${ports}`, internal, held(one)];
}

// Answers of a search to show.
const FOUND_MAX = 1000;

// Whether the records of that time are whole, and all limits of the answer.
function coverage(found, hasPort) {
  const end = found.objects.find(one => "complete" in one);
  const holders = found.objects.length - (end ? 1 : 0);
  const notes = [...(end?.notes ?? []), ...(found.notes ?? [])].map(note => `Note: ${note}.`);
  if (!end) return notes.join("\n");
  const records = end.complete ? "the records of that time are complete" : "the records of that time are not complete: others may have had it";
  const several = holders > 1 ? ` ${number.format(holders)} holders: which of them it was, ${hasPort ? "" : "a port, "}the remote endpoint or a closer time decides.` : "";
  // What was asked, so that a time that was meant otherwise is seen.
  const time = end.from === end.to ? `at ${moment(end.from)}` : `from ${moment(end.from)} to ${moment(end.to)}`;
  const asked = `${end.asked} ${time}`;
  return [`${asked}: ${holders === 0 ? "no holder found" : counted(holders, "answer")}; ${records}.${several}`, ...notes].join("\n");
}

// ADDRESS, ADDRESS:PORT, [ADDRESS]:PORT of IPv6, or an IPv6 address or prefix.
function endpointOf(text) {
  const inBrackets = text.match(/^\[([^\]]*)\](?::(\d+))?$/);
  if (inBrackets) return { address: inBrackets[1], port: inBrackets[2] };
  const parts = text.split(":");
  return parts.length > 2 ? { address: text } : { address: parts[0], port: parts[1] };
}

onSubmit("find", async () => {
  // What was found and explained before is no answer to this.
  fill("found", []);
  at("notes").textContent = "";
  unexplained("");
  at("vrf").value = "";
  const text = at("endpoint").value.trim();
  const given = { ...endpointOf(text), protocol: at("transport").value, at: at("at").value.trim(), case: at("case").value };
  const found = await ask(`api/v1/find?${query({ ...given, limit: FOUND_MAX })}`);
  // An answer without some of the holders must not look like all of them.
  const more = found.cursor ? `Only the first ${number.format(FOUND_MAX)} answers are shown: search for a port, or by /api/v1/find.` : "";
  at("notes").textContent = more;
  if (given.at) {
    fill("found", found.objects.filter(one => !("complete" in one)).map(rowOfThen));
    at("notes").textContent = [more, coverage(found, Boolean(given.port))].filter(Boolean).join("\n");
    unexplained("A search of the past explains no packet: what would happen to one is known for now only.");
    return;
  }
  fill("found", found.objects.map(one => {
    const host = one.host ?? one.mapping?.host;
    return [
      one.holder ?? (host ? hostText(host) : null), one.vrf,
      one.mapping ? `${one.mapping.protocol} ${one.mapping.external}` : one.external_address,
      one.mapping ? internalText(one.mapping) : null, one.detail,
    ];
  }));
  const mapping = found.objects.find(one => one.mapping)?.mapping;
  const firstAt = place => found.objects.find(one => one.place === place);
  if (mapping) await fare(mapping);
  else if (!given.port) unexplained("An address without a port explains no packet: search for one of its ports.");
  else if (firstAt("internal") && !given.address.includes(":")) await begin({ ...given, vrf: firstAt("internal").vrf });
  else if (firstAt("external")) await arrive(given.protocol, `${given.address}:${given.port}`);
  else unexplained("Without a mapping of this endpoint there is no packet to explain.");
  // Where VRFs overlap, the address alone does not say whose packet this is.
  const vrfs = new Set(found.objects.map(one => one.vrf).filter(Boolean));
  if (vrfs.size > 1 && at("vrf").value) at("unexplained").textContent = `This is a packet of VRF ${at("vrf").value}; for another VRF, enter it and explain again.`;
});

// Empties the explanation, and says why there is none.
function unexplained(words) {
  fill("steps", []);
  at("unexplained").textContent = words;
}

// A destination for a packet that nobody has sent yet: TEST-NET-1 (RFC 5737).
const EXAMPLE = "192.0.2.1:443";

// Without a mapping: what would happen to the first packet, and so why there is none.
async function begin({ address, port, protocol, vrf }) {
  at("protocol").value = protocol || "udp";
  at("source").value = `${address}:${port}`;
  at("vrf").value = vrf ?? "";
  at("b4").value = "";
  at("destination").value ||= EXAMPLE;
  at("inbound").checked = false;
  await explain();
}

// What would happen to a packet from outside to an endpoint that no session uses.
async function arrive(protocol, external) {
  at("protocol").value = protocol || "udp";
  at("source").value = EXAMPLE;
  at("vrf").value = at("b4").value = "";
  at("destination").value = external;
  at("inbound").checked = true;
  await explain();
  if (!protocol) at("unexplained").textContent = "This is a packet of UDP; a search with another protocol explains one of that.";
}

// What would happen to a packet of the mapping that was found, to the remote endpoint it last had.
async function fare(mapping) {
  const [external, external_port] = mapping.external.split(":");
  const wanted = { protocol: mapping.protocol, external, external_port, case: at("case").value };
  const sessions = await listed("sessions", wanted, 1);
  const remote = sessions.objects[0]?.remote;
  if (!remote) return arrive(mapping.protocol, mapping.external);
  at("protocol").value = mapping.protocol;
  // Behind a softwire the source is the address inside; by NAT64 it is that of the IPv6 host.
  const { host } = mapping;
  at("source").value = !host ? mapping.internal : `${host.inner ?? `[${host.address}]`}:${portOf(mapping.internal)}`;
  at("vrf").value = mapping.vrf;
  at("b4").value = host?.inner ? host.address : "";
  at("destination").value = remote;
  at("inbound").checked = false;
  await explain();
}

async function explain() {
  unexplained("");
  const answer = await ask(`api/v1/why?${query({
    protocol: at("protocol").value, source: at("source").value, destination: at("destination").value, inbound: at("inbound").checked,
    vrf: at("vrf").value.trim(), b4: at("b4").value.trim(), case: at("case").value,
  })}`);
  const leaves = answer.translated_source ? [["leaves as", `${answer.protocol} ${answer.translated_source} > ${answer.translated_destination}`, null]] : [];
  // What to do about a drop is the same as in the table of drops.
  const { objects } = answer.kind === "dropped" ? await ask("api/v1/drops") : { objects: [] };
  const remedy = objects.find(drop => drop.reason === answer.verdict)?.remedy;
  fill("steps", [
    ...answer.steps.map(step => [step.step, step.decision, step.detail]), ...leaves,
    ["verdict", answer.verdict, answer.description], ...(remedy ? [["what to do", remedy, null]] : []),
  ]);
}

onSubmit("why", explain);

onSubmit("change", async button => {
  const send = { body: at("text").value, headers: { "content-type": "text/plain" } };
  const done = ({ reloaded, changes }) =>
    `in use: change ${reloaded.generation}, ${counted(changes.length, "difference")}${reloaded.not_saved ? `; not saved: ${reloaded.not_saved}` : ""}${(reloaded.warnings ?? []).map(warning => `; warning: ${warning}`).join("")}`;
  if (button?.value === "rollback") {
    if (!confirm("Return to the configuration before the last reload?")) return;
    at("changed").textContent = done(await order("api/v1/rollback"));
    return;
  }
  if (button?.value === "reload") {
    at("reload").disabled = true;
    at("changed").textContent = done(await order(`api/v1/reload?${query({ save: at("save").checked })}`, send));
    return;
  }
  at("reload").disabled = true;
  const text = at("text").value;
  const planned = await order("api/v1/plan", send);
  fill("differences", planned.changes.map(one => [one.object, one.before, one.after, one.live ? "at once" : `after a restart: ${one.reason ?? ""}`]));
  fill("effects", planned.pools.flatMap(pool => Object.entries(pool)
    // Without the role audit, null stands for few or none.
    .filter(([name, value]) => typeof value === "number" ? value > 0 : value === null && /^(subscribers|mappings)_/.test(name))
    .map(([name, value]) => [pool.pool, effect(name), value ?? "fewer than 10"])));
  at("changed").textContent = planned.changes.length === 0 ? "no changes"
    : planned.plan.applies ? `${counted(planned.changes.length, "difference")}; nothing has changed yet` : "needs a restart";
  // What is loaded is what was planned.
  at("reload").disabled = !planned.plan.applies || planned.changes.length === 0 || at("text").value !== text;
});
at("text")?.addEventListener("input", () => { at("reload").disabled = true; });

onSubmit("drain", async button => {
  const undo = button?.value === "undo";
  if (!undo && !confirm("Withdraw all pools from the routing? Traffic moves to other routers, if there are any.")) return;
  const done = await order(`api/v1/drain?${query({ undo })}`);
  const words = done.drained ? ["drained", "already drained"] : ["drain undone", "was not drained"];
  at("drained").textContent = `${done.changed ? words[0] : words[1]}; left: ${done.unknown === null ? left(done) : `not known, because ${done.unknown}`}`;
});

async function keepFresh() {
  for (;;) {
    if (!document.hidden) await refresh().then(() => lost(unfollowed), error => lost(error.message));
    await new Promise(resolve => setTimeout(resolve, 2000));
  }
}

// Why there are no live figures.
let unfollowed = null;
function follow() {
  const live = new EventSource("api/v1/live");
  live.onopen = () => { unfollowed = null; lost(null); };
  live.addEventListener("status", event => {
    if (unfollowed) { unfollowed = null; lost(null); }
    show(JSON.parse(event.data));
  });
  live.onerror = event => {
    // An event of the server has data: Natrix did not answer it in time, and it goes on asking.
    if (event.data) { lost(unfollowed = "Natrix does not answer; trying again."); return; }
    // The browser tries again if the connection was lost, and not if it was refused.
    const isRefused = live.readyState === EventSource.CLOSED;
    unfollowed = isRefused ? "Live figures are refused, perhaps because many pages are open; trying again." : "The connection to Natrix is lost; trying again.";
    lost(unfollowed);
    if (isRefused) setTimeout(follow, 5000);
  };
}
follow();
keepFresh();
