"use strict";
// Text goes into the page only as text, never as markup: names come from elsewhere.
const at = id => document.getElementById(id);
const csrf = document.querySelector("meta[name=csrf]").content;
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

function report(message) {
  at("alert").hidden = !message;
  at("alert").textContent = message ?? "";
}

const said = error => `${error.object}: ${error.problem}${error.seen ? ` (${error.seen})` : ""}; ${error.remedy}`;

async function ask(path, options = {}) {
  const answer = await fetch(path, options);
  const body = await answer.json();
  if (answer.ok) return body;
  const faults = (body.faults ?? []).map(fault => `\n${fault.file}:${fault.line ?? ""} ${said(fault)}`);
  throw new Error(said(body.error) + faults.join(""));
}

const query = fields => new URLSearchParams(Object.entries(fields).filter(([, value]) => value !== "" && value !== null)).toString();
const percent = ratio => `${(100 * ratio).toFixed(1)} %`;
const sum = each => each.udp + each.tcp + each.icmp;

// The last ten minutes.
const KEPT = 600;
const series = [[], [], []];
let plot = null;

function draw(status) {
  series[0].push(Date.now() / 1000);
  series[1].push(status.packets_per_second);
  series[2].push(status.drops_per_second);
  for (const one of series) if (one.length > KEPT) one.shift();
  const width = Math.min(at("plot").clientWidth, 1100);
  if (!plot) {
    const ink = getComputedStyle(document.body).color;
    const axis = { stroke: ink, grid: { stroke: "#8884" }, ticks: { stroke: "#8888" } };
    plot = new uPlot({
      width, height: 220, scales: { x: { time: true } },
      series: [{}, { label: "forwarded/s", stroke: "#2a7fd4", width: 2 }, { label: "dropped/s", stroke: "#d4502a", width: 2 }],
      axes: [axis, { ...axis, size: 80 }],
    }, series, at("plot"));
  } else {
    plot.setSize({ width, height: 220 });
    plot.setData(series);
  }
}

function show(status) {
  at("instance").textContent = `${status.version}, ${status.state}, up ${Math.round(status.uptime_us / 1e6)} s`;
  const log = status.event_log;
  const figures = {
    "packets a second": number.format(status.packets_per_second),
    "Mbit/s": number.format(Math.round(status.bits_per_second / 1e6)),
    "drops a second": number.format(status.drops_per_second),
    "new mappings a second": number.format(status.mappings_created_per_second),
    sessions: number.format(status.sessions),
    mappings: number.format(status.mappings),
    subscribers: number.format(status.subscribers),
    "log": !log ? "none" : log.failing ? "failing" : `${(log.lag_us / 1e6).toFixed(1)} s behind`,
  };
  at("figures").replaceChildren(...Object.entries(figures).map(([name, value]) => {
    const pair = element("div");
    pair.append(element("dt", name), element("dd", value));
    return pair;
  }));
  fill("workers", status.workers.map(worker => [
    String(worker.worker), worker.cpu === null ? "any" : String(worker.cpu), percent(worker.busy_ratio),
    worker.packets_received, worker.packets_forwarded, worker.packets_dropped, worker.sessions,
  ]));
  draw(status);
}

let droppedBefore = new Map();

async function refresh() {
  const [pools, drops, addresses] = await Promise.all([
    ask("api/v1/pools"), ask("api/v1/drops"), ask("api/v1/pools/addresses?limit=1024"),
  ]);
  fill("pools", pools.objects.map(pool => [
    pool.draining ? `${pool.name} (draining)` : pool.name, pool.allocation, pool.addresses, pool.subscribers,
    sum(pool.ports_used), percent(pool.utilisation_ratio),
  ]));
  const now = Date.now();
  const rows = drops.objects.filter(drop => drop.packets > 0).sort((a, b) => b.packets - a.packets);
  fill("drops", rows.map(drop => {
    const before = droppedBefore.get(drop.reason);
    const rate = before ? (drop.packets - before.packets) * 1000 / (now - before.at) : 0;
    return [drop.reason, drop.packets, Math.round(rate), drop.description];
  }));
  droppedBefore = new Map(rows.map(drop => [drop.reason, { packets: drop.packets, at: now }]));
  map(addresses.objects);
}

let mapped = "";

function map(addresses) {
  const level = ratio => ratio === 0 ? 0 : ratio < 0.5 ? 1 : ratio < 0.8 ? 2 : ratio < 0.95 ? 3 : 4;
  const key = addresses.map(one => `${one.address} ${level(one.utilisation_ratio)}`).join();
  // Unchanged boxes stay, and with them the focus.
  if (key === mapped) return;
  mapped = key;
  const focused = document.activeElement?.dataset?.address;
  at("map").replaceChildren(...addresses.map(one => {
    const box = element("button", undefined, `level${level(one.utilisation_ratio)}`);
    box.type = "button";
    box.dataset.address = one.address;
    box.ariaLabel = `${one.address} of ${one.pool}, ${percent(one.utilisation_ratio)} used`;
    box.title = box.ariaLabel;
    box.addEventListener("click", () => users(one.address).catch(error => report(error.message)));
    return box;
  }));
  if (focused) at("map").querySelector(`[data-address="${CSS.escape(focused)}"]`)?.focus();
}

async function users(address) {
  const page = await ask(`api/v1/subscribers?${query({ external: address, limit: 200 })}`);
  fill("address", page.objects.map(one => [
    one.address, one.vrf, sum(one.mappings),
    one.own_ports.map(own => `${own.external_address}:${own.first_port}-${own.last_port}`).join(" ") || null,
  ]));
}

function onSubmit(id, act) {
  at(id)?.addEventListener("submit", event => {
    event.preventDefault();
    report(null);
    act(event.submitter).catch(error => report(error.message));
  });
}

onSubmit("find", async () => {
  const [address, port] = at("endpoint").value.trim().split(":");
  const found = await ask(`api/v1/find?${query({ address, port: port ?? null, at: at("at").value, case: at("case").value })}`);
  at("found").textContent = [...found.objects.map(one => one.detail ?? JSON.stringify(one)), ...found.notes ?? []].join("\n");
});

onSubmit("why", async () => {
  const answer = await ask(`api/v1/why?${query({
    protocol: at("protocol").value, source: at("source").value, destination: at("destination").value, inbound: at("inbound").checked,
  })}`);
  fill("steps", [...answer.steps.map(step => [step.step, step.decision, step.detail]), ["verdict", answer.verdict, answer.description]]);
});

onSubmit("change", async button => {
  const send = { method: "POST", body: at("text").value, headers: { "content-type": "text/plain", "x-natrix-csrf": csrf } };
  const reload = at("change").querySelector("[value=reload]");
  if (button?.value === "reload") {
    reload.disabled = true;
    const done = await ask(`api/v1/reload?${query({ save: at("save").checked })}`, send);
    at("changed").textContent = `in use: change ${done.reloaded.generation}, ${done.changes.length} differences`;
    return;
  }
  const planned = await ask("api/v1/plan", send);
  at("changed").textContent = planned.changes.map(one =>
    `${one.object}: ${one.before ?? "none"} → ${one.after ?? "none"}${one.live ? "" : " (needs a restart)"}`).join("\n") || "no changes";
  fill("effects", planned.pools.flatMap(pool => Object.entries(pool)
    .filter(([, value]) => typeof value === "number" && value > 0)
    .map(([name, value]) => [pool.pool ?? pool.name ?? "", name, value])));
  reload.disabled = !planned.plan.applies;
});
at("text")?.addEventListener("input", () => { at("change").querySelector("[value=reload]").disabled = true; });

async function keepFresh() {
  for (;;) {
    if (!document.hidden) await refresh().catch(error => report(error.message));
    await new Promise(resolve => setTimeout(resolve, 2000));
  }
}

const live = new EventSource("api/v1/live");
live.addEventListener("status", event => { report(null); show(JSON.parse(event.data)); });
live.onerror = () => report("The connection to Natrix is lost; trying again.");
keepFresh();
