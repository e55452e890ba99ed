/* The live page of zkconsumer serve. It reads /api/groups and its event streams, and writes nothing.

   Names come from nodes that anybody may have written. They reach the document as text only (textContent), and
   invisible characters in them are written as escapes. */
"use strict";

(() => {
  const MOST_POINTS = 720;
  const LONGEST = 2000; // characters of one text
  const MOST_LISTED = 200; // members in a list; the map shows all
  const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const SVG = "http://www.w3.org/2000/svg";

  // ---- small tools

  const byId = (id) => document.getElementById(id);

  /** Text with visible escapes in place of control, formatting and private characters, cut if a node held a megabyte. */
  const shown = (value) => {
    const text = String(value ?? "");
    const cut = text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
    return cut.replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Cn}\u2028\u2029]/gu, (one) => {
      const code = one.codePointAt(0);
      return code < 256 ? "\\x" + code.toString(16).padStart(2, "0") : "\\u" + code.toString(16).padStart(4, "0");
    });
  };

  /** An element with a class, attributes and children; texts become text nodes. */
  function make(tag, name, ...rest) {
    const element = document.createElement(tag);
    if (name) element.className = name;
    for (const one of rest) {
      if (one === null || one === undefined) continue;
      if (one instanceof Node) element.append(one);
      else if (typeof one === "object") for (const [key, value] of Object.entries(one)) element.setAttribute(key, value);
      else element.append(document.createTextNode(shown(one)));
    }
    return element;
  }

  /** A paragraph that keeps the line breaks of a text. */
  function lines(name, text) {
    const paragraph = make("p", name);
    String(text).split("\n").forEach((line, n) => paragraph.append(...(n ? [document.createElement("br")] : []), shown(line)));
    return paragraph;
  }

  function draw(tag, attributes) {
    const element = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  }

  function put(element, text) {
    const wanted = shown(text);
    if (element.textContent !== wanted) element.textContent = wanted;
  }

  const drawn = new WeakMap();
  /** Fill an element anew, but only if what it shows has changed: focus and open details stay otherwise. */
  function fill(element, value, build) {
    const key = JSON.stringify(value);
    if (drawn.get(element) === key) return;
    const open = new Set([...element.querySelectorAll("details[open]")].map((one) => one.dataset.key));
    drawn.set(element, key);
    element.replaceChildren(...build());
    for (const one of element.querySelectorAll("details")) if (open.has(one.dataset.key)) one.open = true;
  }

  const whole = new Intl.NumberFormat("en");
  const known = (value) => value !== null && value !== undefined;
  const count = (value) => (known(value) ? whole.format(value) : "unknown");
  const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

  function duration(seconds) {
    if (!known(seconds)) return "unknown";
    if (seconds > 0 && seconds < 0.95) return `${Math.round(seconds * 1000)} ms`;
    if (seconds < 10) return `${Math.round(seconds * 10) / 10} s`;
    if (seconds < 60) return `${Math.round(seconds)} s`;
    const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
    const first = units.findIndex(([, size]) => seconds >= size);
    const [[name, size], [next, smaller] = ["", 1]] = units.slice(first);
    const rest = Math.floor((seconds % size) / smaller);
    return `${Math.floor(seconds / size)} ${name}${next && rest ? ` ${rest} ${next}` : ""}`;
  }

  const clock = (at, options) => {
    const date = new Date(at);
    return Number.isNaN(date.getTime()) ? "unknown" : date.toLocaleString("en-GB", options);
  };
  const timeOfDay = (at) => clock(at, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const moment = (at) =>
    known(at) ? clock(at, { day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" }) : "time unknown";

  const STATES = { Stable: "good", Rebalancing: "warn", PreparingRebalance: "warn", CompletingRebalance: "warn", Stuck: "bad" };
  const SEVERITIES = { ok: "good", note: "idle", warn: "warn", error: "bad" };
  /** The judgement of a group or partition in a word and a number: "3 errors". */
  function verdictBadge(one) {
    const counts = one.finding_counts ?? {};
    const [errors, warnings] = [counts.error ?? 0, counts.warn ?? 0];
    const text = errors ? plural(errors, "error") : warnings ? plural(warnings, "warning") : one.severity === "note" ? plural(counts.note ?? 0, "note") : "ok";
    return make("span", `badge judged ${SEVERITIES[one.severity] ?? "idle"}`, text);
  }
  const OLD = 3; // a number is old after so many intervals
  const isOld = (seconds) => known(seconds) && seconds > OLD * interval + 5;

  /** The state in a word. It is not green where the judgement is not. */
  function badge(state, severity) {
    const look = STATES[state] ?? "idle";
    return make("span", `badge ${look === "good" && LEVELS[severity] < LEVELS.note ? "idle" : look}`, state || "Unknown");
  }

  // ---- members: a colour, a letter, and stripes once the colours repeat

  const looks = new Map();
  function look(member) {
    if (!looks.has(member)) {
      const number = looks.size;
      const letter = number < 26 ? LETTERS[number] : LETTERS[Math.floor(number / 26 - 1) % 26] + LETTERS[number % 26];
      const round = Math.floor(number / 10);
      looks.set(member, { letter, style: `m${number % 10}${round ? (round % 2 ? " again" : " again2") : ""}` });
    }
    return looks.get(member);
  }
  const swatch = (member, none = "–") =>
    known(member) ? make("span", `swatch ${look(member).style}`, { "aria-hidden": "true" }, look(member).letter)
      : make("span", "swatch", { "aria-hidden": "true" }, none);
  /** Look-ups of one document: members by id, members by thread, and how many members a host has. */
  function indexed(group) {
    const members = new Map(group.members.map((one) => [one.id, one]));
    const threads = new Map(group.members.flatMap((one) => one.threads.map((thread) => [thread, one.id])));
    const hosts = new Map();
    for (const one of group.members) hosts.set(one.host, (hosts.get(one.host) ?? 0) + 1);
    return { members, threads, hosts };
  }
  let index = indexed({ members: [] });

  const memberOfThread = (thread) =>
    known(thread) ? index.threads.get(thread) ?? (index.members.has(thread) ? thread : thread.replace(/-\d+$/, "")) : null;

  /** A member's name without what it shares with its group: the host, and the end of the id if hosts repeat. */
  function nameOf(group, id) {
    const host = index.members.get(id)?.host;
    const rest = id.startsWith(`${group.group}_`) ? id.slice(group.group.length + 1) : id;
    if (!host || !rest.startsWith(host)) return rest;
    return index.hosts.get(host) > 1 ? `${host} …${id.slice(-6)}` : host;
  }

  // ---- what is on the screen

  let route = null; // the chosen group, null for the overview
  let current = null; // its document
  let history = null;
  let picked = null; // the member whose partitions are shown alone
  let pinned = null; // the partition whose explanation stays open
  let pointed = null; // the check whose finding the address names
  let receivedAt = 0;
  let takenAge = null;
  let interval = 10; // seconds between two readings of the server

  const groupPath = (name) => `api/groups/${encodeURIComponent(name)}`;

  // ---- live: one event stream, taken up again by the browser or by us

  let stream = null;
  let retry = null;
  let pause = 1000;
  let connected = false;
  let fetching = false;
  let again = false;

  function open() {
    close();
    const chosen = route;
    stream = new EventSource(chosen === null ? "api/events" : `${groupPath(chosen)}/events`);
    stream.onopen = () => {
      connected = true;
      pause = 1000;
      refresh();
    };
    const changed = () => refresh();
    stream.onmessage = changed;
    stream.addEventListener("changed", changed);
    stream.onerror = () => {
      connected = false;
      age();
      if (stream && stream.readyState === EventSource.CLOSED) again_later(); // refused: the browser does not retry
    };
    refresh();
  }

  function close() {
    clearTimeout(retry);
    if (stream) stream.close();
    stream = null;
    connected = false;
  }

  function again_later() {
    clearTimeout(retry);
    retry = setTimeout(open, pause);
    pause = Math.min(pause * 2, 15000);
  }

  async function refresh() {
    if (fetching) {
      again = true;
      return;
    }
    fetching = true;
    const chosen = route;
    try {
      const since = history && history.times.length ? `?since=${history.times.at(-1)}` : "";
      const answer = await fetch(chosen === null ? "api/groups" : groupPath(chosen) + since, { cache: "no-store" });
      if (answer.status === 401) throw new Error("a token is needed, open the page with ?token=TOKEN once");
      const found = await answer.json().catch(() => ({}));
      if (!answer.ok) throw new Error(found.error || `the server answers ${answer.status}`);
      if (chosen === route) {
        receivedAt = performance.now();
        interval = found.interval ?? interval;
        fail(null);
        if (chosen === null) showGroups(found);
        else showGroup(found);
      }
    } catch (error) {
      if (chosen === route) fail(`No new data: ${error.message}`);
    } finally {
      fetching = false;
      if (again || chosen !== route) {
        again = false;
        refresh();
      }
    }
    age();
  }

  function fail(text) {
    byId("failure").hidden = !text;
    put(byId("failure"), text || "");
  }

  /** Say how old the data is, each second. */
  function age() {
    const live = byId("live");
    const seconds = takenAge === null ? null : takenAge + (performance.now() - receivedAt) / 1000;
    const old = seconds === null ? "" : duration(Math.floor(seconds));
    live.dataset.live = connected ? (seconds === null ? "wait" : seconds > 3 * interval + 5 ? "stale" : "on") : seconds === null ? "wait" : "off";
    put(byId("live-text"), seconds === null ? "connecting" : connected ? `updated ${old} ago` : `reconnecting, ${old} old`);
  }

  // ---- the overview

  const SHOWS = [["", "All"], ["error", "Errors"], ["warn", "Warnings"], ["note", "Notes"], ["ok", "Ok"], ["old", "Not read lately"]];
  const view = { show: "", state: "" }; // the chosen filters

  /** What a person should know of a group: one severity with its text. A group that was not read lately is never ok. */
  function need(one) {
    const old = isOld(one.age);
    const severity = (old || one.failure || one.state === "Stuck") && LEVELS[one.severity] > LEVELS.warn ? "warn" : one.severity;
    const text = LEVELS[one.severity] < LEVELS.note ? one.headline
      : one.failure ? `not read: ${one.failure}` : old ? `not read for ${duration(Math.round(one.age))}`
      : severity === "warn" ? one.reason : one.headline ?? (one.state === "Stable" ? "" : one.reason);
    return { severity, text, old: old || Boolean(one.failure) };
  }

  /** Errors first, then what falls behind, then by the size of the lag. Small changes do not move a row. */
  const size = (lag) => (known(lag) && lag > 0 ? Math.floor(Math.log10(lag)) : -1);
  const byNeed = (a, b) =>
    LEVELS[a.need.severity] - LEVELS[b.need.severity] || grows(b.one) - grows(a.one)
    || size(b.one.lag) - size(a.one.lag) || (a.one.group < b.one.group ? -1 : 1);

  function showGroups(found) {
    current = found;
    if (found.failure) fail(`The last reading failed: ${found.failure}. Older values are shown.`);
    const ages = found.groups.map((one) => one.age).filter(known);
    takenAge = ages.length ? Math.min(...ages) : 0; // a group that cannot be read says so in its row
    byId("overview").hidden = false;
    byId("group").hidden = true;
    put(byId("crumb"), "");
    document.title = "Groups · zkconsumer";
    const all = found.groups.map((one) => ({ one, need: need(one) }));
    showFilters(all);
    const wanted = byId("filter").value.toLowerCase();
    const rows = all.filter(({ one, need: its }) => one.group.toLowerCase().includes(wanted)
      && (view.show === "" || (view.show === "old" ? its.old : its.severity === view.show)) && (view.state === "" || one.state === view.state)).sort(byNeed);
    put(byId("overview-count"), rows.length === all.length ? count(rows.length) : `${count(rows.length)} of ${count(all.length)}`);
    byId("no-groups").hidden = rows.length > 0;
    put(byId("no-groups"), all.length ? "No group is like this." : "No group is known yet.");
    placeRows(byId("groups"), rows);
    const kept = found.kept;
    byId("kept").hidden = !kept || !(kept.failure || kept.clock);
    put(byId("kept"), kept?.failure ? `The history is not written: ${kept.failure}` : kept?.clock ? `The history has a step: ${kept.clock}.` : "");
    byId("kept").classList.toggle("bad", Boolean(kept?.failure));
  }

  function showFilters(all) {
    const counts = Object.fromEntries(SHOWS.map(([show]) => [show, all.filter((one) => show === "" || (show === "old" ? one.need.old : one.need.severity === show)).length]));
    const of = (severity) => all.filter((one) => one.need.severity === severity).sort(byNeed).map((one) => one.one.group);
    const [errors, warnings] = [of("error"), of("warn")];
    const some = (names) => `${names.slice(0, 3).map(shown).join(", ")}${names.length > 3 ? ` and ${names.length - 3} more` : ""}`;
    const parts = [];
    if (errors.length) parts.push(`${plural(errors.length, "group")} with errors: ${some(errors)}`);
    if (warnings.length) parts.push(`${plural(warnings.length, "group")} with warnings: ${some(warnings)}`);
    put(byId("summary"), !all.length ? "" : parts.length ? `${parts.join(". ")}.` : "Nothing needs a person.");
    fill(byId("shows"), [view.show, counts], () => SHOWS.filter(([show]) => counts[show] || show === view.show || show === "").map(([show, word]) => {
      const button = make("button", `show ${SEVERITIES[show] ?? ""}`, `${word} `, make("b", "", count(counts[show])), { type: "button", "aria-pressed": String(view.show === show), "data-show": show });
      button.addEventListener("click", () => choose({ show: view.show === show ? "" : show }));
      return button;
    }));
    const states = [...new Set(all.map((one) => one.one.state).concat(view.state || []))].sort();
    fill(byId("states"), [states, view.state], () => ["", ...states].map((state) => make("option", "", state || "any", { value: state, ...(state === view.state ? { selected: "" } : {}) })));
  }

  /** Choose filters, and keep them in the address, so that "back" and a bookmark have them. */
  function choose(chosen) {
    Object.assign(view, chosen);
    const query = new URLSearchParams(Object.entries(view).filter(([, value]) => value)).toString();
    window.history.replaceState(null, "", query ? `#/?${query}` : "#/");
    if (!current?.groups) return;
    const focused = document.activeElement?.dataset?.show;
    showGroups(current);
    if (known(focused)) byId("shows").querySelector(`[data-show="${focused}"]`)?.focus();
  }

  const rowOf = new Map(); // the row of each group, and what it shows
  /** Show rows in this order. A row that shows the same stays in place, and the focus stays where it was. */
  function placeRows(body, rows) {
    const focused = body.contains(document.activeElement) ? document.activeElement : null;
    const focusedRow = focused?.closest("tr");
    const nth = focusedRow ? [...focusedRow.querySelectorAll("a")].indexOf(focused) : -1;
    const name = focusedRow?.dataset.group;
    const there = new Set();
    let at = body.firstChild;
    for (const entry of rows) {
      const key = JSON.stringify([entry.need, rowFacts(entry.one)]);
      let had = rowOf.get(entry.one.group);
      if (!had || had.key !== key) {
        const row = groupRow(entry);
        if (had?.row === at) at = at.nextSibling;
        had?.row.remove();
        had = { key, row };
        rowOf.set(entry.one.group, had);
      }
      if (at === had.row) at = at.nextSibling;
      else body.insertBefore(had.row, at);
      there.add(had.row);
    }
    for (const row of [...body.children]) if (!there.has(row)) row.remove();
    for (const [group, had] of rowOf) if (!there.has(had.row)) rowOf.delete(group);
    if (focused && document.activeElement !== focused) rowOf.get(name)?.row.querySelectorAll("a")[nth]?.focus();
  }

  const rowFacts = (one) => [one.group, one.state, one.lag, one.lag_seconds, one.drains, one.drain_seconds, one.member_count, one.owned_count, one.partition_count, one.coordination, one.strategy, one.finding_counts, one.worst_check, one.unknown_lags, one.curve, isOld(one.lag_age) && Math.round(one.lag_age), isOld(one.age) && Math.round(one.age)];

  function groupRow({ one, need: its }) {
    const address = `#/g/${encodeURIComponent(one.group)}`;
    const by = one.coordination === "brokers" ? "brokers" : one.coordination === "zookeeper" ? "ZooKeeper" : "unknown";
    const link = make("td", "", make("a", "", one.group, { href: address }), make("span", "why", `${by}${one.strategy ? ` · ${one.strategy}` : ""}`));
    const told = its.severity === one.severity ? verdictBadge(one) : make("span", `badge judged ${SEVERITIES[its.severity]}`, its.old ? "old" : one.state);
    const needs = make("td", "", told, " ", make("span", "state", one.state || "Unknown"), its.text ? make("span", "why", its.text) : null);
    if (one.worst_check && LEVELS[one.severity] < LEVELS.note) {
      needs.append(make("a", "remedy-link", "What to do", { href: `${address}?finding=${encodeURIComponent(one.worst_check)}`, "aria-label": shown(`What to do for ${one.group}`) }));
    }
    const cell = (label, text, name = "") => make("td", `number ${name}`, text, { "data-label": label });
    const old = isOld(one.lag_age) ? "old" : "";
    const lag = cell("Lag", count(one.lag), old);
    if (old) lag.append(make("span", "why", `${duration(Math.round(one.lag_age))} old`));
    if (one.unknown_lags) lag.append(make("span", "why", `and ${count(one.unknown_lags)} unknown`));
    const age = cell("Read", its.old ? `${duration(Math.round(one.age))} ago` : "now", its.old ? "late" : "");
    return make("tr", `${its.severity === "error" ? "bad" : its.severity === "warn" ? "warn" : ""}${its.old ? " stale" : ""}`, { "data-group": one.group },
      link, needs, make("td", "hour", curve(one.curve ?? [])), lag, cell("Behind", duration(one.lag_seconds), old),
      cell("Caught up in", drainText(one), grows(one) ? "late" : ""), cell("Members", count(one.member_count)),
      cell("Owned", `${count(one.owned_count)} of ${count(one.partition_count)}`), age);
  }

  const grows = (one) => Boolean(one.lag) && one.drains === false && one.produced_rate > one.consumed_rate;
  const drainText = (one) =>
    one.lag === 0 ? "no lag" : one.drains === false ? "not at this rate" : known(one.drain_seconds) ? duration(Math.ceil(one.drain_seconds)) : "unknown";

  /** A curve of lags, one a minute. Each group has its own scale: the number stands beside it. */
  function curve(lags) {
    const seen = lags.filter(known);
    if (!seen.length) return make("span", "muted", "not known yet");
    const most = Math.max(1, ...seen);
    const [x, y] = [(n) => 1 + (118 * n) / Math.max(1, lags.length - 1), (value) => 26 - (24 * value) / most];
    const words = `Lag in the last hour: first ${count(seen[0])}, at most ${count(Math.max(...seen))}, last ${count(seen.at(-1))}`;
    const svg = draw("svg", { viewBox: "0 0 120 28", preserveAspectRatio: "none", role: "img", "aria-label": words });
    svg.append(draw("path", { class: "under", d: under(lags, x, y, 27) }), draw("path", { d: path(lags, x, y) }));
    const last = lags.findLastIndex(known);
    if (seen.length === 1) svg.append(draw("path", { d: `M${x(last) - 2} ${y(lags[last])}L${x(last)} ${y(lags[last])}` }));
    return svg;
  }

  // ---- one group

  function showGroup(found) {
    if (history && found.serial < (current?.serial ?? 0)) { // the server began anew, and so does its history
      history = null;
      current = found;
      again = true;
      return;
    }
    current = found;
    takenAge = found.age;
    index = indexed(found);
    for (const member of found.members) look(member.id);
    merge(found.history);
    byId("overview").hidden = true;
    byId("group").hidden = false;
    put(byId("crumb"), found.group);
    put(byId("group-name"), found.group);
    document.title = `${shown(found.group)} · zkconsumer`;
    fill(byId("group-state"), [found.state, found.severity, found.finding_counts], () => [badge(found.state, found.severity), " ", verdictBadge(found)]);
    put(byId("group-reason"), LEVELS[found.severity] < LEVELS.note ? `${found.headline} (${found.reason})` : found.reason);
    if (found.failure) fail(`The last reading failed: ${found.failure}. Older values are shown.`);
    showFigures(found);
    showLegend(found);
    showMap(found);
    showSpans(found);
    showChart();
    showSparks(found);
    showRebalances(found);
    showFindings(found);
    showPlans(found);
    showMembers(found);
    byId("problems-card").hidden = !found.problems.length;
    fill(byId("problems"), found.problems, () =>
      found.problems.map((one) => make("li", "", make("code", "", one.what), ` ${one.why}`)));
    if (pointed !== null) pointOut();
  }

  /** Show the finding that the address names, once it is there. */
  function pointOut() {
    const row = [...byId("findings").querySelectorAll("[data-check]")].find((one) => one.dataset.check === pointed);
    pointed = null;
    if (!row) return;
    row.classList.add("pointed");
    row.scrollIntoView({ block: "center" });
    row.focus({ preventScroll: true });
  }

  function showFigures(group) {
    const last = group.rebalances.at(-1);
    const wanted = group.partitions.filter((one) => !one.abandoned);
    const unowned = wanted.filter((one) => !known(one.owner)).length;
    const rows = [
      ["Lag", count(group.lag), group.abandoned_topics.length ? `without ${plural(group.abandoned_topics.length, "abandoned topic")}` : isOld(group.lag_age) ? `${duration(group.lag_age)} old` : group.unknown_lags ? `unknown for ${plural(group.unknown_lags, "partition")}` : "messages", isOld(group.lag_age) ? "old" : SEVERITY_CLASS[group.severity] ?? ""],
      ["Behind", duration(group.lag_seconds), known(group.lag_seconds) ? "age of the oldest waiting message" : "no message time is known", ""],
      ["Caught up in", drainText(group), known(group.consumed_rate) ? `${rate(group.consumed_rate)} consumed, ${rate(group.produced_rate)} produced a second` : "rates are not known yet", grows(group) ? "warn" : ""],
      ["Owned", `${count(wanted.length - unowned)} of ${count(wanted.length)}`, unowned > 0 ? `${unowned} without an owner` : "partitions", unowned > 0 ? "bad" : ""],
      ["Members", count(group.member_count), memberKinds(group), ""],
      ["Strategy", group.strategy || "unknown", group.coordination === "brokers" ? "the brokers coordinate" : "ZooKeeper coordinates", ""],
      ["Last rebalance", last && known(last.ended) ? `${/^\d+ \w+/.exec(duration(Math.max(0, Math.round((group.now - last.ended) / 1000))))[0]} ago` : last ? "time unknown" : "none seen", last ? tookText(last) : "", ""],
    ];
    fill(byId("figures"), rows, () =>
      rows.map(([name, value, note, level]) => make("div", level, make("dt", "", name), make("dd", "", value, make("small", "", note)))));
  }

  const rate = (value) => (!known(value) ? "unknown" : value >= 10 || value === 0 ? whole.format(Math.round(value)) : String(Math.round(value * 100) / 100));

  const tookText = (one) =>
    !one.claims ? "no claim yet" : known(one.duration) ? `took ${duration(one.duration)}`
      : known(one.at_least) && known(one.at_most) && one.at_least <= one.at_most && one.at_most < 600 ? `took ${duration(one.at_least)} to ${duration(one.at_most)}`
      : known(one.at_least) ? `took at least ${duration(one.at_least)}` : "duration unknown";

  function memberKinds(group) {
    const kinds = new Map();
    for (const one of group.members) kinds.set(one.kind ?? "unknown", (kinds.get(one.kind ?? "unknown") ?? 0) + 1);
    return kinds.size > 3 ? `${kinds.size} kinds` : [...kinds].map(([kind, number]) => `${number} ${kind}`).join(", ") || "none";
  }

  function showLegend(group) {
    fill(byId("legend"), [picked, group.members.map((one) => [one.id, one.owned.length, one.kind])], () =>
      group.members.slice(0, MOST_LISTED).map((member) => {
        const button = make("button", "", swatch(member.id), make("span", "name", nameOf(group, member.id)),
          make("span", "count", member.owned.length),
          { type: "button", "aria-pressed": String(picked === member.id), "data-member": member.id,
            "aria-label": shown(`Member ${look(member.id).letter}, ${nameOf(group, member.id)}, owns ${plural(member.owned.length, "partition")}`) });
        button.addEventListener("click", () => {
          picked = picked === member.id ? null : member.id;
          showLegend(current);
          showMap(current);
          byId("legend").querySelector(`[data-member="${CSS.escape(member.id)}"]`)?.focus();
        });
        return button;
      }));
  }

  // ---- the partition map: cells stay, so that focus and pointer stay on them

  const cells = new Map();
  const keyOf = (one) => `${one.topic}:${one.partition}`;

  function showMap(group) {
    const map = byId("map");
    map.classList.toggle("many", group.partitions.length > 160);
    if (picked !== null && !index.members.has(picked)) picked = null;
    const topics = new Map();
    for (const one of group.partitions) topics.set(one.topic, [...(topics.get(one.topic) ?? []), one]);
    fill(map, [group.group, group.partitions.map(keyOf)], () => {
      cells.clear();
      return [...topics].map(([topic, all]) => {
        const boxes = make("div", "cells", { role: "group", "aria-label": shown(`Partitions of ${topic}`) });
        for (const one of all) boxes.append(newCell(keyOf(one)));
        const gone = group.abandoned_topics.includes(topic);
        return make("div", "topic", make("h3", "", topic, make("span", "muted", gone ? "  abandoned: no member subscribes to it" : `  ${all.length}`)), boxes);
      });
    });
    const most = Math.max(1, ...group.partitions.map((one) => (one.abandoned ? 0 : one.lag ?? 0)));
    for (const one of group.partitions) updateCell(group, one, most);
    const focusable = [...cells.values()];
    if (focusable.length && !focusable.some((cell) => cell.tabIndex === 0)) focusable[0].tabIndex = 0;
    const strange = group.partitions.filter((one) => misplaced(one)).length;
    put(byId("map-note"), strange ? `${plural(strange, "partition")} not where the strategy wants` : "");
    if (pinned !== null && cells.has(pinned)) showTip(pinned);
    else if (!byId("tip").hidden && tipOf !== null) showTip(tipOf);
  }

  const SEVERITY_CLASS = { warn: "warn", error: "bad" };
  const misplaced = (one) => known(one.owner) && known(one.expected) && one.owner !== one.expected;

  function newCell(key) {
    const load = make("span", "load", make("i", ""), { "aria-hidden": "true" });
    const cell = make("button", "cell", make("span", "letter"), make("span", "index"), load, { type: "button", tabindex: "-1", "data-key": key });
    cell.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && pinned === null && showTip(key));
    cell.addEventListener("pointerleave", () => pinned === null && hideTip());
    cell.addEventListener("focus", () => {
      for (const other of cells.values()) other.tabIndex = other === cell ? 0 : -1;
      if (pinned === null) showTip(key);
    });
    cell.addEventListener("blur", () => pinned === null && hideTip());
    cell.addEventListener("click", () => pin(pinned === key ? null : key));
    cells.set(key, cell);
    return cell;
  }

  function updateCell(group, one, most) {
    const cell = cells.get(keyOf(one));
    const member = one.owner_member;
    const classes = ["cell"];
    if (known(one.owner)) classes.push(known(member) ? look(member).style : "stranger");
    else classes.push(one.abandoned ? "abandoned" : "unowned");
    if (misplaced(one)) classes.push("misplaced");
    if (one.severity in SEVERITY_CLASS) classes.push(`judged-${one.severity}`);
    if (picked !== null && member !== picked) classes.push("dim");
    if (pinned === keyOf(one)) classes.push("pinned");
    const name = classes.join(" ");
    if (cell.className !== name) cell.className = name;
    put(cell.children[0], known(one.owner) ? (known(member) ? look(member).letter : "?") : one.abandoned ? "" : "!");
    put(cell.children[1], one.partition);
    cell.children[2].firstChild.style.setProperty("--share", `${known(one.lag) ? Math.min(100, (100 * one.lag) / most) : 0}%`);
    const who = known(one.owner) ? `owned by ${known(member) ? `${look(member).letter}, ${nameOf(group, member)}` : one.owner}` : one.abandoned ? "abandoned" : "without an owner";
    const text = shown(`${one.topic} ${one.partition}, ${who}, lag ${count(one.lag)}${misplaced(one) ? ", should be another member's" : ""}${one.severity in SEVERITY_CLASS ? `, ${one.severity}: ${one.verdict}` : ""}`);
    if (cell.getAttribute("aria-label") !== text) cell.setAttribute("aria-label", text);
  }

  let tipOf = null;
  function showTip(key) {
    const one = current?.partitions?.find((other) => keyOf(other) === key);
    const cell = cells.get(key);
    if (!one || !cell) return;
    const tip = byId("tip");
    if (tipOf !== null && tipOf !== key) cells.get(tipOf)?.removeAttribute("aria-describedby");
    tipOf = key;
    cell.setAttribute("aria-describedby", "tip");
    fill(tip, one, () => tipParts(one));
    tip.hidden = false;
    const at = cell.getBoundingClientRect();
    const left = Math.max(12, Math.min(at.left, innerWidth - tip.offsetWidth - 12));
    const below = at.bottom + 8 + tip.offsetHeight < innerHeight || at.top < tip.offsetHeight + 12;
    tip.style.setProperty("left", `${left}px`);
    tip.style.setProperty("top", `${below ? at.bottom + 8 : at.top - tip.offsetHeight - 8}px`);
  }

  function tipParts(one) {
    const rows = [
      ["Owner", one.owner ?? "nobody"],
      ["Since", known(one.owned_since) ? moment(one.owned_since) : "unknown"],
      ["Should be", known(one.expected) ? (one.expected === one.owner ? "the same" : one.expected) : one.abandoned ? "nobody's: no member subscribes" : "unknown"],
      ["Lag", `${count(one.lag)}${known(one.lag_seconds) ? `, ${duration(one.lag_seconds)} behind` : ""}${isOld(one.lag_age) ? `, read ${duration(one.lag_age)} ago` : ""}`],
      ["Committed", one.offset_problem ? one.offset_problem : `${count(one.offset)}${known(one.committed) ? `, ${moment(one.committed)}` : ""}`],
      ["Log", `${count(one.log_start)} to ${count(one.log_end)}${known(one.leader) ? `, leader ${one.leader}` : ""}`],
      ["Judged", one.verdict ? `${one.severity}: ${one.verdict}` : one.severity],
      ["Burrow says", one.burrow_status],
    ];
    const list = make("dl", "");
    for (const [name, value] of rows) list.append(make("dt", "", name), make("dd", "", value));
    return [make("b", "", `${one.topic}:${one.partition}`), one.explanation ? lines("", one.explanation) : null, list].filter(Boolean);
  }

  function hideTip() {
    if (tipOf !== null) cells.get(tipOf)?.removeAttribute("aria-describedby");
    tipOf = null;
    byId("tip").hidden = true;
  }

  function pin(key) {
    const before = pinned;
    pinned = key;
    for (const one of [before, key]) cells.get(one)?.classList.toggle("pinned", one === key && one !== null);
    if (key === null) hideTip();
    else showTip(key);
  }

  function moveInMap(event) {
    const all = [...cells.values()];
    const at = all.indexOf(document.activeElement);
    if (at < 0) return;
    const top = all[at].offsetTop;
    const left = all[at].offsetLeft;
    const row = (from, step) => {
      for (let n = from; n >= 0 && n < all.length; n += step) {
        if (all[n].offsetTop === top) continue;
        const same = all.filter((cell) => cell.offsetTop === all[n].offsetTop);
        return same.reduce((a, b) => (Math.abs(b.offsetLeft - left) < Math.abs(a.offsetLeft - left) ? b : a));
      }
      return null;
    };
    const target = { ArrowRight: all[at + 1], ArrowLeft: all[at - 1], ArrowDown: row(at, 1), ArrowUp: row(at, -1), Home: all[0], End: all.at(-1) }[event.key];
    if (target) {
      event.preventDefault();
      if (pinned !== null) pin(null);
      target.focus();
    }
  }

  // ---- lag over time

  function merge(found) {
    if (!history) {
      history = { times: [...found.times], total: [...found.total], partitions: new Map(Object.entries(found.partitions).map(([key, lags]) => [key, [...lags]])) };
    } else {
      const last = history.times.at(-1) ?? 0;
      const from = found.times.findIndex((at) => at > last);
      if (from < 0) return;
      const had = history.times.length;
      const more = found.times.length - from;
      history.times.push(...found.times.slice(from));
      history.total.push(...found.total.slice(from));
      for (const [key, lags] of Object.entries(found.partitions)) {
        if (!history.partitions.has(key)) history.partitions.set(key, Array(had).fill(null));
        history.partitions.get(key).push(...lags.slice(from));
      }
      for (const lags of history.partitions.values()) while (lags.length < had + more) lags.push(null);
    }
    const over = history.times.length - MOST_POINTS;
    if (over > 0) {
      history.times.splice(0, over);
      history.total.splice(0, over);
      for (const lags of history.partitions.values()) lags.splice(0, over);
    }
  }

  /** The path of a line through known values; an unknown one leaves a gap. */
  function path(values, x, y) {
    let text = "";
    let pen = "M";
    for (let n = 0; n < values.length; n += 1) {
      if (!known(values[n])) {
        pen = "M";
        continue;
      }
      text += `${pen}${x(n).toFixed(1)} ${y(values[n]).toFixed(1)}`;
      pen = "L";
    }
    return text;
  }

  function under(values, x, y, floor) {
    let text = "";
    for (let from = 0; from < values.length; from += 1) {
      if (!known(values[from])) continue;
      let to = from;
      while (known(values[to + 1])) to += 1;
      text += `${path(values.slice(from, to + 1), (n) => x(n + from), y)}L${x(to).toFixed(1)} ${floor}L${x(from).toFixed(1)} ${floor}Z`;
      from = to;
    }
    return text;
  }

  /** A round number not below a value, for the end of an axis. */
  function roundUp(value) {
    if (value <= 5) return 5;
    const power = 10 ** Math.floor(Math.log10(value));
    return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((one) => one * power).find((one) => one >= value);
  }

  const short = (value) => Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);

  const SPANS = [[null, "Hour"], ["day", "Day"], ["week", "Week"]];
  let span = null; // the time that the chart shows: null is the last hour, as the server has it in memory
  let past = null; // the document of a day or a week
  let pastAsked = -Infinity;

  function showSpans(group) {
    const kept = group.kept;
    byId("spans").hidden = !kept;
    if (!kept) span = null;
    fill(byId("spans"), [span, Boolean(kept), kept?.failure], () => SPANS.map(([one, word]) => {
      const button = make("button", "plain", word, { type: "button", "aria-pressed": String(span === one), "data-span": String(one) });
      button.addEventListener("click", () => {
        span = one;
        past = cursor = null;
        pastAsked = -Infinity;
        showSpans(current);
        byId("spans").querySelector(`[data-span="${one}"]`)?.focus();
        showChart();
      });
      return button;
    }));
    if (span !== null && performance.now() - pastAsked > (span === "day" ? 60000 : 300000)) fetchPast(route, span);
  }

  async function fetchPast(chosen, wanted) {
    pastAsked = performance.now();
    try {
      const answer = await fetch(`${groupPath(chosen)}/history?span=${wanted}`, { cache: "no-store" });
      const found = await answer.json().catch(() => ({}));
      if (chosen !== route || wanted !== span) return;
      if (!answer.ok) throw new Error(found.error || `the server answers ${answer.status}`);
      past = withGaps(found);
      showChart();
    } catch (error) {
      if (chosen === route && wanted === span) put(byId("lag-note"), `no history: ${error.message}`);
    }
  }

  /** Add an unknown value wherever nobody watched, so that no line runs across it. */
  function withGaps(found) {
    const { time, lag, consumed_rate: consumed, produced_rate: produced } = found.samples;
    const made = { times: [], total: [], consumed: [], produced: [], rebalances: found.rebalances, findings: found.findings, since: found.since, until: found.until };
    const longest = 3000 * Math.max(found.step, interval);
    time.forEach((at, n) => {
      if (n && at - time[n - 1] > longest) {
        made.times.push(time[n - 1] + 1000 * found.step);
        for (const name of ["total", "consumed", "produced"]) made[name].push(null);
      }
      made.times.push(at);
      made.total.push(lag[n]);
      made.consumed.push(consumed[n]);
      made.produced.push(produced[n]);
    });
    return made;
  }

  const NOTHING = { times: [], total: [], consumed: [], produced: [], rebalances: [], findings: [] };
  /** What the chart shows: the last hour, or what the history has of a day or a week. */
  const plotted = () => (span === null ? { ...history, rebalances: current.rebalances } : past ?? NOTHING);

  function showPast() {
    byId("past").hidden = span === null;
    byId("sparks").hidden = span !== null;
    if (span === null || past === null) return;
    const box = byId("rates");
    const [width, height, left, right] = [Math.max(240, box.clientWidth), 84, 46, 10];
    const most = roundUp(Math.max(1, ...past.consumed.filter(known), ...past.produced.filter(known)));
    const x = (n) => left + ((width - left - right) * (past.times[n] - past.since)) / (past.until - past.since);
    const y = (value) => height - 6 - ((height - 14) * value) / most;
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    for (const part of [0, 1]) {
      svg.append(draw("line", { class: "grid", x1: left, x2: width - right, y1: y(most * part), y2: y(most * part) }));
      const text = draw("text", { x: left - 8, y: y(most * part) + 4, "text-anchor": "end" });
      text.textContent = short(most * part);
      svg.append(text);
    }
    svg.append(draw("path", { class: "produced", d: path(past.produced, x, y) }), draw("path", { class: "consumed", d: path(past.consumed, x, y) }));
    box.replaceChildren(svg);
    const mean = (values) => rate(values.some(known) ? values.filter(known).reduce((a, b) => a + b, 0) / values.filter(known).length : null);
    box.setAttribute("aria-label", `On average ${mean(past.consumed)} messages consumed and ${mean(past.produced)} produced a second`);
    fill(byId("past-findings"), past.findings, () => (past.findings.length ? [...past.findings].reverse().map((one) =>
      make("li", "", make("span", `level ${one.level}`, one.level), " ", make("b", "", one.check),
        ` ${moment(one.came)} to ${known(one.went) ? `${moment(one.went)}, ${duration(Math.round((one.went - one.came) / 1000))}` : "now"}`,
        make("span", "why", one.text)))
      : [make("li", "muted", "None in this time.")]));
  }

  let cursor = null;
  let scale = null;
  function showChart() {
    const box = byId("chart");
    showPast();
    const { times, total, rebalances, since, until } = plotted();
    const [first, end] = [since ?? times[0], until ?? times.at(-1)];
    const width = Math.max(240, box.clientWidth);
    const height = box.clientHeight || 200;
    const [left, right, top, bottom] = [46, 10, 8, height - 22];
    const length = Math.max(1, end - first || 1);
    const most = roundUp(Math.max(1, ...total.filter(known)));
    const atTime = (at) => left + ((width - left - right) * (at - first)) / length;
    const x = (n) => (times.length > 1 || known(since) ? atTime(times[n]) : width - right);
    const y = (value) => bottom - ((bottom - top) * value) / most;
    scale = { x, y };
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    for (const part of [0, 0.5, 1]) {
      svg.append(draw("line", { class: "grid", x1: left, x2: width - right, y1: y(most * part), y2: y(most * part) }));
      const text = draw("text", { x: left - 8, y: y(most * part) + 4, "text-anchor": "end" });
      text.textContent = short(most * part);
      svg.append(text);
    }
    for (const one of rebalances) {
      if (!known(one.ended) || !times.length || one.ended < first) continue;
      const begin = Math.max(atTime(Math.max(one.began ?? one.ended, first)), left);
      svg.append(draw("rect", { class: "band", x: begin, width: Math.max(3, Math.min(atTime(one.ended), width - right) - begin), y: top, height: bottom - top }));
    }
    if (total.some(known)) {
      svg.append(draw("path", { class: "area", d: under(total, x, y, bottom) }), draw("path", { class: "curve", d: path(total, x, y) }));
      const last = total.length - 1;
      if (known(total[last])) svg.append(draw("circle", { class: "point", cx: x(last), cy: y(total[last]), r: 4.5 }));
    }
    const label = (at) => (span === null ? timeOfDay(at) : clock(at, { ...(span === "week" ? { day: "2-digit", month: "short" } : {}), hour: "2-digit", minute: "2-digit" }));
    const labels = span === null ? (times.length > 1 ? [[first, "start"], [end, "end"]] : [[end, "end"]]) : [[first, "start"], [first + length / 2, "middle"], [end, "end"]];
    for (const [at, anchor] of times.length ? labels : []) {
      const text = draw("text", { x: times.length > 1 || known(since) ? atTime(at) : width - right, y: height - 4, "text-anchor": anchor });
      text.textContent = label(at);
      svg.append(text);
    }
    box.replaceChildren(svg);
    const now = total.findLast(known);
    box.setAttribute("aria-label", `Total lag from ${label(first)} to ${label(end)}, now ${count(now)} messages, at most ${count(total.some(known) ? Math.max(...total.filter(known)) : null)}`);
    put(byId("lag-note"), span !== null ? (past === null ? "reading the history" : times.length ? "the largest of each point" : "nothing is kept of this time yet")
      : times.length > 1 ? `the last ${duration(length / 1000)}` : "one reading so far");
    showCursor();
  }

  function showCursor() {
    const svg = byId("chart").firstChild;
    const { times, total } = plotted();
    svg?.querySelectorAll(".cursor, .at").forEach((one) => one.remove());
    const at = cursor === null ? null : Math.min(cursor, times.length - 1);
    if (at === null || !svg || at < 0) {
      put(byId("chart-value"), times.length > 1 ? "Bands: rebalances." : "");
      return;
    }
    const value = total[at];
    svg.append(draw("line", { class: "cursor", x1: scale.x(at), x2: scale.x(at), y1: scale.y(0), y2: 8 }));
    if (known(value)) svg.append(draw("circle", { class: "point at", cx: scale.x(at), cy: scale.y(value), r: 4.5 }));
    put(byId("chart-value"), `${moment(times[at])}: ${known(value) ? plural(value, "message") : "lag unknown"}`);
  }

  function chartPointer(event) {
    if (!history || !scale) return;
    const { times } = plotted();
    const box = byId("chart").getBoundingClientRect();
    const wanted = event.clientX - box.left;
    let best = 0;
    for (let n = 1; n < times.length; n += 1) if (Math.abs(scale.x(n) - wanted) < Math.abs(scale.x(best) - wanted)) best = n;
    cursor = best;
    showCursor();
  }

  function chartKey(event) {
    if (!history) return;
    const { times } = plotted();
    const last = times.length - 1;
    const from = cursor ?? last;
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    cursor = Math.max(0, Math.min(last, to));
    showCursor();
  }

  // ---- a small curve for each partition, drawn when it comes into view

  const sparks = new Map();
  let visible = new Set();
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) visible.add(entry.target);
      else visible.delete(entry.target);
    }
    drawSparks();
  }, { root: byId("sparks"), rootMargin: "80px" });

  function showSparks(group) {
    const box = byId("sparks");
    const order = group.partitions.filter((one) => known(one.lag) || history.partitions.get(keyOf(one))?.some(known)).map(keyOf);
    fill(box, order, () => {
      watcher.disconnect();
      visible = new Set();
      sparks.clear();
      return order.map((key) => {
        const row = make("div", "spark", make("span", "who"), make("span", "label", key, { title: shown(key) }), make("span", "plot", { "aria-hidden": "true" }), make("span", "number"), { "data-key": key });
        sparks.set(key, row);
        watcher.observe(row);
        return row;
      });
    });
    // by lag; a row is moved only if the order has changed, so that nobody's scrolling is lost
    const wanted = group.partitions.filter((one) => sparks.has(keyOf(one))).sort((a, b) => (b.lag ?? -1) - (a.lag ?? -1)).map(keyOf);
    const there = [...box.children].map((row) => row.dataset.key);
    if (wanted.join("\n") !== there.join("\n") && box.scrollTop === 0) box.append(...wanted.map((key) => sparks.get(key)));
    for (const one of group.partitions) {
      const row = sparks.get(keyOf(one));
      if (!row) continue;
      row.className = `spark ${known(one.owner_member) ? look(one.owner_member).style.split(" ")[0] : ""}`;
      fill(row.children[0], [one.owner_member ?? null, one.owner ?? null], () => [swatch(one.owner_member, known(one.owner) ? "?" : "–")]);
      put(row.children[3], count(one.lag));
    }
    drawSparks();
  }

  function drawSparks() {
    if (!history) return;
    let most = 1;
    for (const lags of history.partitions.values()) for (const lag of lags) if (lag > most) most = lag;
    const last = Math.max(1, history.times.length - 1);
    const length = Math.max(1, history.times.at(-1) - history.times[0]);
    for (const row of visible) {
      const lags = history.partitions.get(row.dataset.key) ?? [];
      const key = `${history.times.at(-1)} ${most} ${lags.length}`;
      if (row.dataset.drawn === key) continue;
      row.dataset.drawn = key;
      const x = (n) => (history.times.length > 1 ? (200 * (history.times[n] - history.times[0])) / length : (200 * n) / last);
      const y = (value) => 21 - (20 * value) / most;
      const svg = draw("svg", { viewBox: "0 0 200 22", preserveAspectRatio: "none" });
      svg.append(draw("path", { class: "under", d: under(lags, x, y, 22) }), draw("path", { d: path(lags, x, y) }));
      row.children[2].replaceChildren(svg);
    }
  }

  // ---- rebalances, findings, plans, members

  function showRebalances(group) {
    const all = [...group.rebalances].reverse();
    put(byId("rebalances-note"), !all.length ? "" : group.coordination === "brokers" ? "the latest first" : "the latest first, in the order of ZooKeeper's transactions");
    const longest = Math.max(0.001, ...all.map((one) => one.duration ?? 0));
    fill(byId("rebalances"), all, () => (all.length ? all.map((one) => rebalance(group, one, longest)) : [make("li", "muted", "None is known.")]));
  }

  function rebalance(group, one, longest) {
    const bar = make("i", known(one.duration) ? "" : "unknown", { "aria-hidden": "true" });
    bar.style.setProperty("--share", `${known(one.duration) ? Math.max(1, (55 * one.duration) / longest) : 12}%`);
    const last = known(one.last) ? memberOfThread(one.last) : null;
    const facts = [plural(one.claims, "claim"), `${plural(one.moved.length, "partition")} moved`];
    if (one.previous_owner_unknown) facts.push(`${one.previous_owner_unknown} from an unknown owner`);
    if (last) facts.push(`last claim by ${nameOf(group, last)}`);
    return make("li", "",
      make("span", "when", moment(one.began ?? one.ended), { title: known(one.zxid) ? `zxid 0x${one.zxid.toString(16)}` : "zxid unknown" }),
      make("span", "cause", causes(group, one)),
      make("span", "took", bar, make("span", "", tookText(one), known(one.duration) || !one.claims ? null : known(one.began) ? null : ": its begin is not known exactly")),
      make("span", "facts", facts.join(" · ")),
      one.moved.length ? make("span", "facts", moves(group, `r${one.zxid}${one.began}`, one.moved.map((move) => ({ partition: `${move.topic}:${move.partition}`, from: move.before, to: move.after })))) : null);
  }

  function causes(group, one) {
    if (!one.causes.length) return "Cause unknown: nothing that still stands explains it";
    const texts = one.causes.map((event) => (known(event.member) && event.member ? `${nameOf(group, event.member)} ${event.event}` : event.event === "left" ? "A member left (unknown which)" : `${event.event}${event.detail ? `: ${event.detail}` : ""}`));
    return texts.length > 4 ? `${texts.slice(0, 3).join(", ")} and ${texts.length - 3} more` : texts.join(", ");
  }

  /** A thread in words: its member, and which of several streams it is. */
  function threadName(group, thread, member) {
    if (!member) return "nobody";
    const name = nameOf(group, member);
    const stream = /-(\d+)$/.exec(thread)?.[1];
    const several = index.members.has(member) ? index.members.get(member).threads.length > 1 : false;
    return several && known(stream) ? `${name} #${stream}` : name;
  }

  function moves(group, key, all) {
    const list = make("ul", "moves");
    let inside = 0;
    for (const [n, one] of all.entries()) {
      const [from, to] = [memberOfThread(one.from || null), memberOfThread(one.to || null)];
      inside += from !== null && from === to;
      if (n >= 60) continue;
      const label = `${one.partition}: ${threadName(group, one.from, from)} → ${threadName(group, one.to, to)}`;
      const side = (member) => (member && index.members.has(member) ? swatch(member) : make("span", "swatch", { "aria-hidden": "true" }, member ? "·" : "–"));
      list.append(make("li", "", side(from), make("span", "", "→", { "aria-hidden": "true" }), side(to), make("span", "what", label, { title: shown(label) })));
    }
    if (all.length > 60) list.append(make("li", "muted", `and ${all.length - 60} more`));
    const summary = `${plural(all.length, "move")}${inside ? `, ${inside} of them between streams of one member` : ""}`;
    return make("details", "", make("summary", "", summary), list, { "data-key": key });
  }

  const LEVELS = { error: 0, warn: 1, note: 2, ok: 3 };

  function showFindings(group) {
    const all = [...group.findings].sort((a, b) => (LEVELS[a.level] ?? 2) - (LEVELS[b.level] ?? 2));
    const [open, told] = [all.filter((one) => one.unknown), all.filter((one) => !one.unknown)];
    const bad = told.filter((one) => one.level === "error" || one.level === "warn").length;
    put(byId("findings-note"), bad ? `${bad} to act on` : "nothing to act on");
    fill(byId("findings"), all, () => {
      const rows = told.length ? told.map(finding) : [make("li", "muted", "The doctor has found nothing.")];
      if (open.length) {
        const list = make("ul", "findings", ...open.map(finding));
        rows.push(make("li", "", make("details", "", make("summary", "", `${plural(open.length, "check")} without an answer`), list, { "data-key": "unknown" })));
      }
      return rows;
    });
  }

  function finding(one) {
    const level = one.level in LEVELS ? one.level : "note";
    const more = [["Evidence", one.evidence], ["Node", one.node], ["More", one.link]].filter(([, value]) => value);
    const list = make("div", "fine");
    for (const [name, value] of more) list.append(make("div", "", `${name}: `, make("code", "", value)));
    return make("li", "", { "data-check": one.check, tabindex: "-1" }, make("span", `level ${level}`, level), make("span", "muted", one.check), make("p", "text", one.text),
      one.remedy ? lines("remedy", one.remedy) : null,
      more.length ? make("details", "", make("summary", "", "Evidence"), list, { "data-key": `${one.check} ${one.node} ${one.text}` }) : null);
  }

  function showPlans(group) {
    const all = Object.entries(group.plans);
    fill(byId("plans"), all, () => (all.length ? all.map(([key, one]) => plan(group, key, one))
      : [make("p", "muted", "No plan can be made: the group has no members that ZooKeeper knows.")]));
  }

  function plan(group, key, one) {
    const box = make("div", "plan", make("h3", "", `If ${one.title}${key === "join" && !/ joins$/.test(one.title) ? " joins" : ""}`));
    if (one.problem) box.append(make("p", "fine", one.problem));
    else box.append(make("p", "", one.text));
    const idle = one.idle ?? [];
    if (idle.length) {
      const names = idle.slice(0, 4).map((thread) => threadName(group, thread, memberOfThread(thread) ?? thread));
      box.append(make("p", "muted", `Idle then: ${names.join(", ")}${idle.length > 4 ? ` and ${idle.length - 4} more` : ""}`));
    }
    if (one.moves?.length) box.append(moves(group, `plan ${key}`, one.moves));
    const pauses = (one.pauses ?? []).filter((each) => each.partitions);
    if (pauses.length || one.notes?.length) {
      const list = make("ul", "pauses");
      for (const each of pauses) list.append(make("li", "", make("b", "", `${each.whose}, ${plural(each.partitions, "partition")}: `), each.how_long));
      for (const note of one.notes ?? []) list.append(make("li", "", note));
      box.append(make("details", "", make("summary", "", "How long it pauses"), list, { "data-key": `pause ${key}` }));
    }
    return box;
  }

  function showMembers(group) {
    put(byId("members-note"), group.members.length ? count(group.members.length) : "");
    fill(byId("members"), group.members.map((one) => [one.id, one.kind, one.owned.length, one.since, one.problem, one.subscription]), () =>
      group.members.length ? [...group.members.slice(0, MOST_LISTED).map(memberRow), ...more(group.members)] : [make("li", "muted", "Nobody is registered.")]);
  }

  const more = (all) => (all.length > MOST_LISTED ? [make("li", "muted", `and ${count(all.length - MOST_LISTED)} more`)] : []);

  function memberRow(one) {
    const topics = Object.entries(one.subscription ?? {}).map(([topic, streams]) => (streams === 1 ? topic : `${topic} × ${streams}`));
    const about = [one.kind ?? "unknown kind", one.host ? `on ${one.host}` : null, known(one.since) ? `since ${moment(one.since)}` : null].filter(Boolean).join(" · ");
    return make("li", "", swatch(one.id), make("span", "id", one.id), make("span", "number", one.owned.length, { title: "partitions owned" }),
      make("span", "about fine", one.problem ? `not read: ${one.problem}` : about),
      topics.length ? make("span", "about fine", `${one.pattern && one.pattern !== "static" ? `${one.pattern}: ` : ""}${topics.slice(0, 6).join(", ")}${topics.length > 6 ? ` and ${topics.length - 6} more` : ""}`) : null);
  }

  // ---- where we are, and keys

  function go() {
    const found = /^#\/g\/([^?]+)(?:\?finding=(.*))?$/.exec(location.hash);
    let name = null;
    try {
      name = found ? decodeURIComponent(found[1]) : null;
      pointed = found && found[2] ? decodeURIComponent(found[2]) : null;
    } catch {
      name = pointed = null; // not an address of ours
    }
    const query = new URLSearchParams(/^#\/\?(.*)$/.exec(location.hash)?.[1] ?? "");
    if (name === null) Object.assign(view, { show: query.get("show") ?? "", state: query.get("state") ?? "" });
    if (name === route && stream) return name === null && current?.groups && showGroups(current);
    route = name;
    current = history = picked = takenAge = cursor = span = past = null;
    pin(null);
    byId("overview").hidden = byId("group").hidden = true;
    fail(null);
    open();
    scrollTo(0, 0);
  }

  const THEMES = { "": "◐", light: "○", dark: "●" };
  const WORDS = { "": "as the system", light: "light", dark: "dark" };
  function theme(next) {
    if (next) document.documentElement.dataset.theme = next;
    else delete document.documentElement.dataset.theme;
    put(byId("theme"), THEMES[next]);
    byId("theme").setAttribute("aria-label", `Colours: ${WORDS[next]}`);
    byId("theme").title = `Colours: ${WORDS[next]}`;
  }
  let chosenTheme = "";
  try {
    chosenTheme = localStorage.getItem("zkconsumer.theme") ?? "";
  } catch {
    chosenTheme = ""; // storage is forbidden here
  }
  theme(chosenTheme in THEMES ? chosenTheme : "");

  byId("theme").addEventListener("click", () => {
    const order = Object.keys(THEMES);
    chosenTheme = order[(order.indexOf(chosenTheme) + 1) % order.length];
    theme(chosenTheme);
    try {
      localStorage.setItem("zkconsumer.theme", chosenTheme);
    } catch {
      return; // the choice lasts for this page
    }
  });
  byId("filter").addEventListener("input", () => current?.groups && showGroups(current));
  byId("states").addEventListener("change", (event) => choose({ state: event.target.value }));
  byId("map").addEventListener("keydown", moveInMap);
  byId("chart").addEventListener("pointermove", chartPointer);
  byId("chart").addEventListener("pointerdown", chartPointer);
  byId("chart").addEventListener("pointerleave", () => {
    cursor = null;
    if (history) showCursor();
  });
  byId("chart").addEventListener("keydown", chartKey);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") pin(null);
    if (event.key === "/" && route === null && document.activeElement !== byId("filter")) {
      event.preventDefault();
      byId("filter").focus();
    }
  });
  document.addEventListener("pointerdown", (event) => pinned !== null && !event.target.closest(".cell") && pin(null));
  addEventListener("scroll", () => tipOf !== null && showTip(tipOf), { passive: true });
  addEventListener("resize", () => {
    if (route !== null && history) showChart();
  });
  addEventListener("hashchange", go);
  // a hidden page keeps no connection: a browser has only six for one server, and the server has other readers
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => event.persisted && open());
  setInterval(age, 1000);
  go();
})();
