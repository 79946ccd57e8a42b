// Looks at the page in Chromium, for test_page.py: node page.mjs MODULES CHROMIUM. For each line of
// settings on standard input, one JSON object on standard output. Settings: base,
// users {role: [name, secret]}, check, and what the check needs.

import { execFileSync } from "node:child_process";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [modules, executablePath] = process.argv.slice(2);
const require = createRequire(modules);
const { chromium } = require("playwright-core");
const axe = require("axe-core").source;

let settings = {};
// What the pages of a check do that they must not.
let faults = [];
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });

async function open(role, options = {}, before = async () => {}) {
  const [username, password] = settings.users[role];
  const context = await browser.newContext({ httpCredentials: { username, password, send: "always" }, ...options });
  // Only what hangs takes so long, on a busy machine too.
  context.setDefaultTimeout(120_000);
  const page = await context.newPage();
  const own = faults;
  const fault = text => own.push(`${role}: ${text}`);
  // Chromium opens connections ahead of use, and the API ends those that say nothing: on a busy machine it may notice late.
  const isOfBusyMachine = text => /net::ERR_SOCKET_NOT_CONNECTED$/.test(text);
  page.on("console", message => {
    const text = message.text();
    if (["error", "warning"].includes(message.type()) && !isOfBusyMachine(text)) fault(`console: ${text}`);
  });
  page.on("pageerror", error => fault(`script: ${error.message}`));
  page.on("request", request => {
    const url = request.url();
    if (!url.startsWith(`${settings.base}/`) && !url.startsWith("data:")) fault(`foreign request: ${url}`);
  });
  page.on("response", response => { if (response.status() >= 400) fault(`${response.status()} ${response.url()}`); });
  await before(page);
  await page.goto(`${settings.base}/`);
  await page.locator("#plot-mappings canvas").waitFor();
  await page.locator("#workers tbody tr").first().waitFor();
  await page.locator("#pools tbody tr").first().waitFor();
  return page;
}

const rows = (page, id) => page.locator(`#${id} tbody tr`);

// Selects an address with blocks, which fills the map of its blocks and the table of subscribers.
async function select(page, role) {
  await page.locator(`#map button[data-address="${settings.inBlocks}"]`).click();
  await page.locator("#chosen", { hasText: settings.inBlocks }).waitFor();
  if (role === "audit") await rows(page, "address").first().waitFor();
}

async function explain(page) {
  await page.fill("#source", settings.source);
  await page.fill("#destination", settings.destination);
  await page.click("#why button");
  await rows(page, "steps").first().waitFor();
}

async function fill(page, role) {
  await select(page, role);
  if (role === "audit") {
    await explain(page);
    await page.fill("#endpoint", settings.external);
    await page.fill("#case", "AZ-17");
    await page.click("#find button");
    await rows(page, "found").first().waitFor();
  }
  if (role === "operate") {
    await page.fill("#text", settings.configuration);
    await page.click("#change button[value=plan]");
    await rows(page, "differences").first().waitFor();
  }
}

const texts = locator => locator.allInnerTexts();

const checks = {
  // Every role, filled, over several updates.
  async quiet() {
    const seen = {}, pages = {};
    for (const role of Object.keys(settings.users)) {
      pages[role] = await open(role);
      await fill(pages[role], role);
    }
    await pages.view.waitForTimeout(5_000);
    for (const [role, page] of Object.entries(pages)) {
      seen[role] = {
        figures: await texts(page.locator("#figures dt")),
        sections: await texts(page.locator("h2")),
        pools: await texts(rows(page, "pools").locator("td:first-child")),
        boxes: await page.locator("#map button").count(),
        blocks: await page.locator("#blocks button").evaluateAll(all => all.map(one => [one.ariaLabel, one.className, one.style.getPropertyValue("--full")])),
        own: await texts(rows(page, "address").locator("td:last-child")),
        drops: await texts(rows(page, "drops").locator("td:last-child")),
        workers: await rows(page, "workers").count(),
        address: await texts(rows(page, "address").locator("td:first-child")),
        chosen: await page.innerText("#chosen"),
        hints: await texts(page.locator(".hint")),
        names: await page.evaluate(name => document.body.innerText.includes(name), settings.subscriber),
        steps: await texts(rows(page, "steps").locator("td:first-child")),
        found: role === "audit" ? await texts(rows(page, "found").locator("td")) : null,
        alerts: await texts(page.locator(".alert:not([hidden])")),
      };
      await page.context().close();
    }
    return seen;
  },

  // The process of the API ends and another one comes; then others have all places for live figures.
  async returns() {
    const page = await open("operate");
    process.kill(settings.api, "SIGKILL");
    await page.locator("#lost:not([hidden])").waitFor();
    const restarted = await page.innerText("#lost");
    await page.locator("#lost").waitFor({ state: "hidden" });
    await page.fill("#text", settings.configuration);
    await page.click("#change button[value=plan]");
    await page.locator("#changed", { hasText: "nothing has changed yet" }).waitFor();

    const [name, secret] = settings.users.operate;
    const headers = { authorization: `Basic ${Buffer.from(`${name}:${secret}`).toString("base64")}` };
    const stop = new AbortController();
    const streams = await Promise.all(Array.from({ length: 20 }, () => fetch(`${settings.base}/api/v1/live`, { headers, signal: stop.signal })));
    const other = await page.context().newPage();
    await other.goto(`${settings.base}/`);
    await other.locator("#lost", { hasText: "refused" }).waitFor();
    // It stays while other requests get answers.
    await other.locator("#pools tbody tr").first().waitFor();
    await other.waitForTimeout(3_000);
    const refused = await other.innerText("#lost");
    stop.abort();
    await other.locator("#workers tbody tr").first().waitFor();
    await other.locator("#lost").waitFor({ state: "hidden" });
    // Of requests that nobody could answer.
    faults.splice(0, faults.length, ...faults.filter(text => /script|foreign/.test(text)));
    return { restarted, refused, answers: streams.map(stream => stream.status) };
  },

  // The width of a small telephone.
  async narrow() {
    const seen = {};
    for (const role of Object.keys(settings.users)) {
      const page = await open(role, { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true });
      await fill(page, role);
      seen[role] = await page.evaluate(() => ({
        width: document.documentElement.scrollWidth,
        outside: [...document.querySelectorAll("input, select, textarea, button, p, h2, dl, .plot")]
          .filter(one => !one.closest(".scroll") && !one.matches(".skip") && one.getClientRects().length > 0)
          .filter(one => one.getBoundingClientRect().right > 390.5).map(one => one.outerHTML.slice(0, 80)),
        small: [...document.querySelectorAll("button, input, select")].filter(one => one.getClientRects().length > 0)
          .filter(one => !one.matches("[type=checkbox]"))
          .filter(one => Math.min(one.getBoundingClientRect().width, one.getBoundingClientRect().height) < 24)
          .map(one => one.outerHTML.slice(0, 80)),
      }));
      await page.context().close();
    }
    return seen;
  },

  // Without a mouse: everything is reached by Tab, shows that it has the focus, and acts on Enter.
  async keyboard() {
    const focusOn = async (page, selector) => {
      for (let steps = 0; steps < 400; steps += 1) {
        await page.keyboard.press("Tab");
        const state = await page.evaluate(wanted => {
          const one = document.activeElement;
          const style = getComputedStyle(one);
          return { there: one.matches(wanted), body: one === document.body, ring: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2, what: one.outerHTML.slice(0, 80) };
        }, selector);
        if (!state.ring && !state.body) faults.push(`no sign of the focus: ${state.what}`);
        if (state.there) return;
      }
      throw new Error(`${selector} is not reached by Tab`);
    };
    const type = async (page, selector, text) => {
      await focusOn(page, selector);
      await page.keyboard.insertText(text);
    };
    const first = await open("audit");
    await focusOn(first, ".skip");
    await first.keyboard.press("Enter");
    // The map is one stop of Tab, however many boxes it has.
    await focusOn(first, "#map button");
    const focused = () => first.evaluate(() => document.activeElement.closest("#map") ? document.activeElement.dataset.address : null);
    const press = async (...keys) => { for (const key of keys) await first.keyboard.press(key); return focused(); };
    const order = await first.locator("#map button").evaluateAll(all => all.map(one => one.dataset.address));
    const rowsOf = await first.locator("#map button").evaluateAll(all => all.map(one => { const { left, top } = one.getBoundingClientRect(); return [one.dataset.address, left, top]; }));
    const map = { order, rows: rowsOf, entered: await focused(), last: await press("End"), beyond: await press("ArrowRight", "ArrowDown"), first: await press("Home") };
    map.second = await press("ArrowRight");
    map.below = await press("ArrowDown");
    map.above = await press("ArrowUp");
    map.left = await press("ArrowLeft");
    for (let steps = 0; await focused() !== settings.inBlocks && steps < order.length; steps += 1) await press("ArrowRight");
    // The boxes are drawn again as their figures change: the stop stays where it was.
    map.after = await press("Tab");
    map.back = await press("Shift+Tab");
    await first.keyboard.press("Enter");
    await rows(first, "address").first().waitFor();
    await focusOn(first, "#blocks button");
    await first.keyboard.press("Enter");
    const proposed = await first.inputValue("#endpoint");
    await first.locator("#endpoint").evaluate(one => one.select());
    await first.keyboard.insertText(settings.external);
    await first.keyboard.press("Enter");
    await rows(first, "found").first().waitFor();
    const found = await texts(rows(first, "found").locator("td"));
    await first.locator("#source").waitFor();
    await rows(first, "steps").first().waitFor();
    const fare = await texts(rows(first, "steps").locator("td"));
    await first.context().close();

    const second = await open("operate");
    second.on("dialog", dialog => dialog.accept());
    await type(second, "#text", settings.configuration);
    const before = await second.locator("#reload").isDisabled();
    await focusOn(second, "#change button[value=plan]");
    await second.keyboard.press("Enter");
    await rows(second, "differences").first().waitFor();
    const differences = await texts(rows(second, "differences").locator("td"));
    const tableFirst = await second.evaluate(() => Boolean(document.getElementById("differences")
      .compareDocumentPosition(document.getElementById("reload")) & Node.DOCUMENT_POSITION_FOLLOWING));
    await second.locator("#reload:enabled").waitFor();
    await focusOn(second, "#reload");
    await second.keyboard.press("Enter");
    await second.locator("#changed", { hasText: "in use" }).waitFor();
    const changed = await second.innerText("#changed");
    await focusOn(second, "#change button[value=rollback]");
    await second.keyboard.press("Enter");
    await second.locator("#changed", { hasText: /in use/ }).filter({ hasNotText: changed }).waitFor();
    await second.context().close();
    return { proposed, found, fare, before, differences, tableFirst, changed, map };
  },

  // WCAG 2.2 A and AA and the advice of axe, in both colours and for every role.
  async axe() {
    const seen = [];
    for (const role of Object.keys(settings.users)) {
      const page = await open(role);
      await fill(page, role);
      await page.evaluate(axe);
      for (const colorScheme of ["light", "dark"]) {
        await page.emulateMedia({ colorScheme });
        for (const viewport of [{ width: 1280, height: 900 }, { width: 390, height: 844 }]) {
          await page.setViewportSize(viewport);
          const { violations, passes } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
          const dark = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
          const found = violations.map(one => `${one.id}: ${one.nodes.map(node => node.html.slice(0, 100)).join(" | ")}`);
          seen.push({ colorScheme, role, width: viewport.width, background: dark, passes: passes.length, violations: found });
        }
      }
      await page.context().close();
    }
    return seen;
  },

  // Names that are markup in every answer: the configuration refuses them, and the page does not
  // rely on that.
  async hostile() {
    const evil = ["<img src=x onerror=\"window.hacked=1\">", "\"><script>window.hacked=1</script>", "'-window.hacked/**/=1-'", "javascript:window.hacked=1"];
    let turn = 0;
    const worsen = value => Array.isArray(value) ? value.map(worsen)
      : value && typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([name, inner]) => [
        name, ["name", "pool", "vrf", "reason", "description", "remedy", "allocation", "detail", "decision", "version", "object", "before"].includes(name) && typeof inner === "string"
          ? `${evil[turn++ % evil.length]} ${inner}` : worsen(inner)]))
        : value;
    const seen = {};
    for (const role of Object.keys(settings.users)) {
      const page = await open(role, {}, page => page.route("**/api/v1/**", async route => {
        if (route.request().url().endsWith("/live")) return route.continue();
        const answer = await route.fetch();
        return route.fulfill({ response: answer, json: worsen(await answer.json()) });
      }));
      await page.locator("#map button").first().click();
      if (role === "audit") {
        await explain(page);
        await page.fill("#endpoint", settings.external);
        await page.click("#find button");
        await rows(page, "found").first().waitFor();
      }
      if (role === "operate") {
        await page.fill("#text", settings.configuration);
        await page.click("#change button[value=plan]");
        await rows(page, "differences").first().waitFor();
      }
      await page.waitForTimeout(2_500);
      seen[role] = await page.evaluate(() => ({
        hacked: typeof window.hacked,
        made: document.querySelectorAll("main img, main script, main a, main iframe").length,
        shown: document.querySelector("#pools tbody").textContent.includes("<img src=x onerror="),
      }));
      // The page asks again and again: one of its questions may just be on its way.
      await page.unrouteAll({ behavior: "ignoreErrors" });
      await page.context().close();
    }
    // The instance has no VRF with such a name, so its packet is not explained.
    faults.splice(0, faults.length, ...faults.filter(fault => !/\b422\b/.test(fault)));
    return seen;
  },

  // IPv6 hosts: found by their own address, and named wherever their number would be.
  async hosts() {
    const page = await open("audit");
    await select(page, "audit");
    const address = await texts(rows(page, "address").locator("td:first-child"));
    const search = async text => {
      await page.fill("#endpoint", text);
      await page.click("#find button");
      await page.locator("#found td", { hasText: settings.inBlocks }).first().waitFor();
      return texts(rows(page, "found").first().locator("td"));
    };
    // What a packet of the mapping that was found would meet. A search empties the table first.
    const steps = async () => {
      await page.locator("#steps tbody tr", { hasText: "verdict" }).waitFor();
      const last = await texts(rows(page, "steps").last().locator("td"));
      const asked = await page.evaluate(() => ["source", "destination", "b4"].map(id => document.getElementById(id).value));
      return { asked, last };
    };
    const found = await search(settings.host);
    const byNat64 = await steps();
    const byExternal = await search(found[2].split(" ")[1]);
    await steps();
    await page.fill("#endpoint", settings.softwireExternal);
    await page.click("#find button");
    const inSoftwire = await steps();
    return { address, found, byExternal, byNat64, inSoftwire };
  },

  // What the log says of two moments.
  async past() {
    const page = await open("audit");
    const search = async at => {
      await page.fill("#endpoint", settings.external);
      await page.fill("#at", at);
      await page.evaluate(() => { document.getElementById("notes").textContent = ""; });
      await page.click("#find button");
      await page.locator("#notes", { hasText: "records" }).waitFor();
      const cells = await Promise.all((await rows(page, "found").all()).map(row => texts(row.locator("td"))));
      return { rows: cells, notes: await page.innerText("#notes") };
    };
    return { then: await search(settings.at), before: await search(settings.long_before) };
  },

  // Searches after one that was explained: none leaves the explanation of another on the page.
  async stale() {
    const page = await open("audit");
    const search = async (text, at) => {
      await page.fill("#endpoint", settings.external);
      await page.fill("#at", "");
      await page.click("#find button");
      await page.locator("#steps td", { hasText: "outbound" }).first().waitFor();
      await page.fill("#endpoint", text);
      await page.fill("#at", at);
      await page.click("#find button");
      // An explanation, a sentence, or an alert.
      await page.waitForFunction(() => ["unexplained", "alert"].some(id => document.getElementById(id).textContent)
        || document.querySelector("#steps tbody").textContent.includes("verdict"));
      return {
        steps: await Promise.all((await rows(page, "steps").all()).map(row => texts(row.locator("td")))),
        found: await rows(page, "found").count(),
        sentence: await page.innerText("#unexplained"),
        alert: (await page.isVisible("#alert")) ? await page.innerText("#alert") : "",
        asked: await page.evaluate(() => [...["source", "destination"].map(id => document.getElementById(id).value), document.getElementById("inbound").checked]),
      };
    };
    const seen = {};
    for (const [name, [text, at]] of Object.entries(settings.searches)) seen[name] = await search(text, at);
    // The refusal of the faulty one was wanted.
    faults.splice(0, faults.length, ...faults.filter(fault => !/\b400\b/.test(fault)));
    return seen;
  },

  // Searches one after the other, each with the packet that it explains.
  async vrfs() {
    const page = await open("audit");
    const seen = [];
    for (const text of settings.searches) {
      await page.fill("#endpoint", text);
      await page.selectOption("#transport", "udp");
      await page.click("#find button");
      await page.locator("#steps tbody tr", { hasText: "verdict" }).waitFor();
      seen.push({
        found: await Promise.all((await rows(page, "found").all()).map(row => texts(row.locator("td")))),
        asked: await page.inputValue("#vrf"),
        leaves: await texts(rows(page, "steps").filter({ hasText: "leaves as" }).locator("td:nth-child(2)")),
        sentence: await page.innerText("#unexplained"),
      });
    }
    await page.fill("#vrf", "nonesuch");
    await page.click("#why button");
    await page.locator("#alert:not([hidden])").waitFor();
    const alert = await page.innerText("#alert");
    // The refusal was wanted.
    faults.splice(0, faults.length, ...faults.filter(fault => !/\b422\b/.test(fault)));
    return { seen, alert };
  },

  // An endpoint without a mapping, in a full pool.
  async full() {
    const page = await open("audit");
    await page.fill("#endpoint", settings.source);
    await page.selectOption("#transport", "udp");
    await page.click("#find button");
    await page.locator("#steps tbody tr", { hasText: "verdict" }).waitFor();
    const steps = await Promise.all((await rows(page, "steps").all()).map(row => texts(row.locator("td"))));
    return { destination: await page.inputValue("#destination"), steps };
  },

  // Out of the routing and back, without a mouse.
  async drain() {
    const page = await open("operate");
    const dialogs = [];
    page.on("dialog", dialog => { dialogs.push(dialog.message()); dialog.accept(); });
    const read = async () => ({ announced: await page.innerText("#announced"), left: await page.innerText("#left") });
    const press = async (id, done, announced) => {
      await page.locator(`#${id}:enabled`).waitFor();
      for (let steps = 0; steps < 400 && !await page.evaluate(id => document.activeElement.id === id, id); steps += 1) await page.keyboard.press("Tab");
      await page.keyboard.press("Enter");
      await page.locator("#drained", { hasText: done }).waitFor();
      const focused = await page.evaluate(() => document.activeElement.id);
      await page.locator("#announced", { hasText: announced }).waitFor();
      return { focused, said: await page.innerText("#drained"), ...await read() };
    };
    await page.locator("#announced", { hasText: "announced" }).waitFor();
    const before = await read();
    const drained = await press("drain-begin", "drained", "Drained");
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
    const back = await press("drain-undo", "undone", "prefix");
    await page.context().close();
    return { before, drained, back, dialogs, violations: violations.map(one => one.id) };
  },

  // The numbers of one moment, as text.
  async numbers() {
    const page = await open("view");
    await page.waitForTimeout(3_000);
    const pairs = await page.evaluate(() => [...document.querySelectorAll("#figures div")].map(pair => [pair.querySelector("dt").textContent, pair.querySelector("dd").textContent]));
    const cells = async id => Promise.all((await rows(page, id).all()).map(row => texts(row.locator("td"))));
    return { figures: Object.fromEntries(pairs), pools: await cells("pools"), drops: await cells("drops"), workers: await cells("workers") };
  },

  // The most connections that one open page has at a time, once those of earlier pages have ended.
  async connections() {
    const port = new URL(settings.base).port;
    const now = () => execFileSync("ss", ["-Htn", "state", "established", `( dport = :${port} )`], { encoding: "utf8" }).split("\n").filter(Boolean).length;
    const tenth = () => new Promise(resolve => setTimeout(resolve, 100));
    for (let waited = 0; now() > 0; waited += 1) {
      if (waited === 200) throw new Error(`${now()} connections of earlier pages are still there after 20 s`);
      await tenth();
    }
    await open("view");
    let most = 0;
    for (let look = 0; look < 80; look += 1) {
      most = Math.max(most, now());
      await tenth();
    }
    return { most };
  },

  async screenshots() {
    for (const [name, role, options] of [
      ["page-light", "operate", { colorScheme: "light", viewport: { width: 1100, height: 900 } }],
      ["page-dark", "audit", { colorScheme: "dark", viewport: { width: 1100, height: 900 } }],
      ["page-narrow", "audit", { colorScheme: "light", viewport: { width: 390, height: 844 } }],
    ]) {
      const page = await open(role, options);
      await fill(page, role);
      await page.waitForTimeout(20_000);
      await page.screenshot({ path: `${settings.folder}/${name}.png`, fullPage: name !== "page-narrow" });
      await page.context().close();
    }
    return {};
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  [settings, faults] = [JSON.parse(line), []];
  let outcome;
  try {
    outcome = { seen: await checks[settings.check](), faults };
  } catch (error) {
    outcome = { error: error.stack, faults };
  }
  for (const context of browser.contexts()) await context.close();
  console.log(JSON.stringify(outcome));
}
await browser.close();
