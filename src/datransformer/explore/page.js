"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const WAIT = 200; // milliseconds without a key before a text is sent
const ALIKE = 0.01; // of the cells of a map have its strongest colour
const PALE = 3;
const MOST_LABELS = 60; // items that a large map writes at its sides
const byId = (id) => document.getElementById(id);
const signed = (number) => (number < 0 ? "−" : "+") + Math.abs(number).toFixed(2);
const percent = (share) => (100 * share).toFixed(share < 0.0995 ? 1 : 0) + " %";
const short = (text) => (text.length > 24 ? text.slice(0, 23) + "…" : text);

let panels = [];
let colours = readColours();

// Text goes into the page as text and in no other way.
function make(tag, options = {}, ...children) {
  const { text, className, ...attributes } = options;
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const named = (name) => style.getPropertyValue(name).trim();
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const stops = dark
    ? [[13, 17, 23], [20, 60, 110], [60, 150, 220], [190, 225, 255], [255, 255, 255]]
    : [[255, 255, 255], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 48, 107]];
  const shades = new Uint32Array(256);
  for (let byte = 0; byte < 256; byte++) {
    const place = (byte / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    const mix = (part) => Math.round(stops[low][part] + (stops[low + 1][part] - stops[low][part]) * (place - low));
    shades[byte] = (255 << 24) | (mix(2) << 16) | (mix(1) << 8) | mix(0);
  }
  return { shades, ink: named("--ink"), soft: named("--soft"), line: named("--c0") };
}

function decode(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let place = 0; place < bytes.length; place++) bytes[place] = text.charCodeAt(place);
  return bytes;
}

function sharpen(canvas) {
  const scale = devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return { context, width, height };
}

// One head of one layer in one sequence: its map, its curve, its numbers.
class Head {
  constructor(panel, layer, number, learned, seen) {
    Object.assign(this, { panel, layer, number, w: learned.w, v: learned.v, curve: learned.curve });
    this.seen = seen;
    this.size = panel.items.length;
    this.bytes = decode(seen.weights);
    this.name = (panel.layers > 1 ? `Layer ${layer + 1}, head ` : "Head ") + (number + 1);
    this.build();
  }

  weight(row, column) {
    const byte = this.bytes[row * this.size + column] / 255;
    return this.seen.largest * byte * byte;
  }

  build() {
    const { seen } = this;
    this.button = make("button", { text: "+", "aria-expanded": "false", "aria-label": `Enlarge ${this.name}` });
    this.button.addEventListener("click", () => this.enlarge());
    this.map = make("canvas", { className: "map", role: "img", "aria-label": this.describe() });
    this.map.addEventListener("pointermove", (event) => this.point(event));
    this.mark = make("i", { className: "mark", hidden: "" });
    this.top = make("p", { className: "top" });
    const numbers = [
      this.w === null ? "no w, no v" : `w = ${signed(this.w)}, v = ${signed(this.v)}`,
      seen.share === null ? "one item, nothing to choose" : `mean distance ${seen.distance.toFixed(1)} (${percent(seen.share)} of even)`,
      seen.share === null ? "" : `entropy ${seen.entropy.toFixed(2)}`,
    ];
    this.element = make(
      "article",
      { className: "head", "aria-label": `${this.name}, looks ${seen.looks}` },
      make("header", {}, make("h4", { text: this.name }), this.button),
      make("div", { className: "frame" }, this.map, this.mark),
      this.top,
      ...numbers.filter(Boolean).map((text) => make("p", { text })),
    );
    this.top.after(make("span", { text: seen.looks, className: `tag ${seen.looks}` }));
    if (this.curve) {
      const last = Math.max(this.size, 2) - 1;
      const label = `f over the distance: ${this.curve[0]} at 0, ${this.curve[last]} at ${last}`;
      this.plot = make("canvas", { className: "curve", role: "img", "aria-label": label });
      this.element.append(this.plot);
    }
  }

  describe() {
    const place = this.bytes.indexOf(255); // the largest weight
    const [row, column] = [Math.floor(place / this.size), place % this.size];
    const strongest = place < 0 ? "" : `, strongest from ${this.panel.items[row]} to ${this.panel.items[column]}, ${percent(this.seen.largest)}`;
    return `Attention of ${this.name}, looks ${this.seen.looks}${strongest}`;
  }

  enlarge() {
    const large = this.element.classList.toggle("large");
    this.button.textContent = large ? "−" : "+";
    this.button.setAttribute("aria-expanded", large);
    this.panel.draw();
  }

  paint() {
    if (!this.bitmap) {
      this.bitmap = new OffscreenCanvas(this.size, this.size);
      const image = new ImageData(this.size, this.size);
      const pixels = new Uint32Array(image.data.buffer);
      const shades = this.shades();
      for (let place = 0; place < pixels.length; place++) pixels[place] = shades[this.bytes[place]];
      this.bitmap.getContext("2d").putImageData(image, 0, 0);
    }
    return this.bitmap;
  }

  // A colour for each byte, in proportion to the weight, the strongest for the largest hundredth: one strong cell must
  // not make all others pale. But a head that attends evenly is pale, for it takes PALE times the mean to be strong.
  shades() {
    const counts = new Uint32Array(256);
    for (const byte of this.bytes) counts[byte]++;
    let [full, above] = [255, counts[255]];
    while (full > 1 && above < ALIKE * this.bytes.length) above += counts[--full];
    const mean = counts.reduce((sum, count, byte) => sum + count * byte * byte, 0) / this.bytes.length;
    const strong = Math.max(full * full, PALE * mean, 1);
    return Uint32Array.from(counts, (_, byte) => colours.shades[Math.round(255 * Math.min(1, (byte * byte) / strong))]);
  }

  margin(width) {
    return this.element.classList.contains("large") && this.size <= MOST_LABELS ? Math.min(90, width / 4) : 0;
  }

  draw() {
    const { context, width, height } = sharpen(this.map);
    const margin = this.margin(width);
    const cell = (width - margin) / this.size;
    context.imageSmoothingEnabled = cell < 1;
    context.drawImage(this.paint(), margin, margin, width - margin, height - margin);
    if (margin) this.label(context, margin, cell);
    context.strokeStyle = colours.soft;
    context.lineWidth = 0.5;
    context.strokeRect(margin, margin, width - margin, height - margin);
    this.box = { width, margin, cell };
    this.markRow();
    if (this.plot) this.drawCurve();
  }

  // The frame around the active row is an element of its own: a map is drawn once, and not with every move.
  markRow() {
    const row = this.panel.active;
    this.mark.hidden = row === null;
    if (row === null || !this.box) return;
    const { width, margin, cell } = this.box;
    const shape = { left: margin, top: margin + row * cell, width: width - margin, height: Math.max(cell, 2) };
    for (const [name, value] of Object.entries(shape)) this.mark.style[name] = `${value}px`;
  }

  label(context, margin, cell) {
    context.fillStyle = colours.ink;
    context.font = `${Math.max(7, Math.min(12, cell * 0.9))}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    this.panel.items.forEach((item, place) => {
      const text = short(item);
      const middle = margin + (place + 0.5) * cell;
      context.textAlign = "right";
      context.fillText(text, margin - 4, middle, margin - 6);
      context.save();
      context.translate(middle, margin - 4);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(text, 0, 0, margin - 6);
      context.restore();
    });
  }

  drawCurve() {
    const { context, width, height } = sharpen(this.plot);
    const values = this.curve.slice(0, Math.max(this.size, 2)).map((value) => (value === null ? 0 : value));
    const high = Math.max(1, ...values);
    const low = Math.min(0, ...values);
    const [top, bottom] = [12, height - 14];
    const x = (place) => 1 + ((width - 2) * place) / (values.length - 1);
    const y = (value) => bottom - ((bottom - top) * (value - low)) / (high - low);
    context.font = "10px system-ui, sans-serif";
    context.fillStyle = context.strokeStyle = colours.soft;
    context.fillText(`f ≤ ${high.toPrecision(3)}`, 2, 9);
    context.fillText("0", 1, height - 3);
    context.textAlign = "right";
    context.fillText(`distance ${values.length - 1}`, width - 1, height - 3);
    context.setLineDash([2, 3]);
    context.beginPath();
    context.moveTo(0, y(1));
    context.lineTo(width, y(1));
    context.stroke();
    context.setLineDash([]);
    context.strokeStyle = colours.line;
    context.lineWidth = 2;
    context.beginPath();
    values.forEach((value, place) => context.lineTo(x(place), y(value)));
    context.stroke();
  }

  point(event) {
    const box = this.map.getBoundingClientRect();
    const margin = this.margin(box.width);
    const cell = (box.width - margin) / this.size;
    const row = Math.floor((event.clientY - box.top - margin) / cell);
    const column = Math.floor((event.clientX - box.left - margin) / cell);
    if (row < 0 || column < 0 || row >= this.size || column >= this.size) return;
    activate(this.panel, row);
    const { items } = this.panel;
    this.top.textContent = `${short(items[row])} → ${short(items[column])}: ${percent(this.weight(row, column))}`;
  }

  tell() {
    const row = this.panel.active;
    this.markRow();
    if (row !== null) this.top.textContent = `${short(this.panel.items[row])} → ${this.strongest(row, 3).join(" · ")}`;
  }

  strongest(row, count) {
    const start = row * this.size;
    const best = [];
    for (let column = 0; column < this.size; column++) {
      const byte = this.bytes[start + column];
      if (best.length === count && byte <= best[count - 1].byte) continue;
      best.push({ byte, column });
      best.sort((one, other) => other.byte - one.byte || one.column - other.column);
      best.length = Math.min(best.length, count);
    }
    return best.map(({ column }) => `${short(this.panel.items[column])} ${percent(this.weight(row, column))}`);
  }
}

// One sequence of one run: its items, and all heads that read them.
class Panel {
  constructor(result, sequence, role, open) {
    Object.assign(this, { role, open, items: sequence.items, active: null });
    const learned = result.levels[sequence.level];
    this.layers = learned.length;
    this.unit = sequence.level === "text" ? "words" : DATA.task === "document" ? "sentences" : "titles";
    this.list = make("div", {
      className: sequence.level === "text" ? "words" : "words list",
      role: "listbox",
      tabindex: "0",
      "aria-label": `${sequence.title}: ${this.items.length} ${this.unit}; arrow keys show what each head attends to`,
    });
    const unknown = new Set(sequence.unknown);
    const name = `item${Panel.count++}-`;
    this.spans = this.items.map((text, place) => {
      const span = make("span", { text, role: "option", id: name + place });
      if (unknown.has(place)) {
        span.classList.add("unknown");
        span.title = "not in the run's vocabulary";
      }
      this.list.append(span, " ");
      return span;
    });
    this.list.addEventListener("keydown", (event) => this.key(event));
    this.list.addEventListener("pointerover", (event) => {
      const place = this.spans.indexOf(event.target);
      if (place >= 0) activate(this, place);
    });
    this.list.addEventListener("click", (event) => {
      const place = this.spans.indexOf(event.target);
      if (place >= 0 && this.open) this.open(place);
    });
    this.list.addEventListener("focus", () => {
      if (this.active === null) activate(this, 0, true);
    });
    this.heads = sequence.layers.flatMap((layer, depth) =>
      layer.map((seen, number) => new Head(this, depth, number, learned[depth].heads[number], seen)));
    this.grid = make("div", { className: "heads" });
    this.element = make("div", {}, make("h3", { text: sequence.title }), this.list, this.grid);
  }

  key(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity };
    if (this.list.classList.contains("list")) Object.assign(steps, { ArrowDown: 1, ArrowUp: -1 });
    if (event.key === "Enter" && this.open && this.active !== null) this.open(this.active);
    if (!(event.key in steps)) return;
    event.preventDefault();
    const place = Math.max(0, Math.min(this.items.length - 1, (this.active ?? 0) + steps[event.key]));
    activate(this, place, true);
    const span = this.spans[place]; // scrolls the list and not the page
    if (span.offsetTop < this.list.scrollTop) this.list.scrollTop = span.offsetTop - 8;
    const below = span.offsetTop + span.offsetHeight - this.list.clientHeight;
    if (below > this.list.scrollTop) this.list.scrollTop = below + 8;
  }

  shown() {
    return this.heads.filter((head) => !head.element.hidden);
  }

  arrange({ key, reverse, looks, least, layer }) {
    const missing = (value) => value === null || value === undefined;
    const value = (head) => (key === "w" || key === "v" ? head[key] : key ? head.seen[key] : null);
    const sorted = [...this.heads].sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      if (missing(a) || missing(b)) return missing(a) - missing(b);
      return reverse ? b - a : a - b;
    });
    for (const head of sorted) {
      head.element.hidden = (looks && head.seen.looks !== looks)
        || (least > 0 && Math.abs(head.w ?? 0) < least)
        || (layer !== "" && head.layer !== Number(layer));
      this.grid.append(head.element);
    }
    this.draw();
  }

  draw() {
    for (const head of this.shown()) {
      head.draw();
      head.tell();
    }
    this.shade();
  }

  show(place) {
    if (this.active !== null) {
      this.spans[this.active].classList.remove("active");
      this.spans[this.active].removeAttribute("aria-selected");
    }
    this.active = place;
    this.spans[place].classList.add("active");
    this.spans[place].setAttribute("aria-selected", "true");
    this.list.setAttribute("aria-activedescendant", this.spans[place].id);
    for (const head of this.shown()) head.tell();
    this.shade();
  }

  // The items in the colour of what the active one attends to: in the large maps if there are any, else in all.
  shade() {
    if (this.active === null) return;
    const shown = this.shown();
    const large = shown.filter((head) => head.element.classList.contains("large"));
    const heads = large.length ? large : shown;
    const sums = this.items.map((_, column) => heads.reduce((sum, head) => sum + head.weight(this.active, column), 0));
    const most = Math.max(...sums) || 1;
    this.spans.forEach((span, place) => span.style.setProperty("--a", (sums[place] / most).toFixed(3)));
  }

  say(place) {
    const heads = this.shown().slice(0, 3).map((head) => `${head.name}, ${head.seen.looks}: ${head.strongest(place, 1)[0]}`);
    byId("said").textContent = `${place + 1} of ${this.items.length}, ${this.items[place]}. ${heads.join(". ")}.`;
  }
}
Panel.count = 0;

// The same place in the panels of all runs.
function activate(panel, place, aloud = false) {
  for (const other of panels) {
    if (other.role === panel.role && place < other.items.length && other.active !== place) other.show(place);
  }
  if (aloud) panel.say(place);
}

function arrangement() {
  const [key, direction] = byId("sort").value.split(" ");
  const least = Number(byId("least").value) || 0;
  return { key, reverse: direction === "down", looks: byId("looks").value, least, layer: byId("layer").value };
}

function arrange() {
  const chosen = arrangement();
  for (const panel of panels) panel.arrange(chosen);
  const heads = panels.flatMap((panel) => panel.heads);
  byId("count").textContent = `${heads.filter((head) => !head.element.hidden).length} of ${heads.length} heads`;
}

function answer(result) {
  const { prediction, probabilities } = result.answer;
  const said = typeof prediction === "number" ? Number(prediction.toPrecision(4)) : prediction;
  const parts = [make("p", {}, "Answer: ", make("strong", { text: said, className: "prediction" }))];
  if (probabilities.length) {
    const list = make("dl", { className: "answer" });
    for (const { label, probability, score } of probabilities) {
      const best = label === prediction ? "best" : "";
      const bar = make("i");
      bar.style.width = 100 * probability + "%";
      const text = percent(probability) + (score === undefined ? "" : ` (${score.toFixed(2)})`);
      list.append(make("dt", { text: label, className: best }), make("dd", { className: "bar", "aria-hidden": "true" }, bar),
        make("dd", { text, className: best }));
    }
    parts.push(list);
  }
  return [...parts, ...result.notes.map((text) => make("p", { text, className: "alert note" }))];
}

function column(result, name) {
  const holder = make("div");
  const { sequences } = result;
  const inner = sequences[0].level === "text" ? sequences : sequences.slice(1);
  const choice = make("select");
  let panel = null;
  const open = (place) => {
    if (place >= inner.length) return;
    choice.value = place;
    panels = panels.filter((other) => other !== panel);
    panel = new Panel(result, inner[place], "inner");
    panels.push(panel);
    holder.replaceChildren(panel.element);
    arrange();
  };
  const parts = [];
  if (inner !== sequences) {
    const outer = new Panel(result, sequences[0], "outer", open);
    panels.push(outer);
    parts.push(outer.element);
  }
  if (inner.length > 1) {
    choice.append(...inner.map(({ title }, place) => make("option", { text: title.slice(0, 80), value: place })));
    choice.addEventListener("change", () => open(Number(choice.value)));
    parts.push(make("p", {}, make("label", {}, "Words of ", choice)));
  }
  const section = make("section", { "aria-label": name }, make("h2", { text: name }), ...answer(result), ...parts, holder);
  return { section, open };
}

function show(results) {
  panels = [];
  const columns = results.map((result, number) => column(result, DATA.names[number]));
  byId("runs").replaceChildren(...columns.map(({ section }) => section));
  const depth = Math.max(...results.flatMap(({ levels }) => Object.values(levels).map((layers) => layers.length)));
  const layers = byId("layer");
  const chosen = layers.value;
  layers.replaceChildren(make("option", { text: "all", value: "" }),
    ...Array.from({ length: depth }, (_, layer) => make("option", { text: layer + 1, value: layer })));
  layers.value = chosen < depth ? chosen : "";
  byId("controls").hidden = false;
  for (const { open } of columns) open(0);
  requestAnimationFrame(() => requestAnimationFrame(() => {
    document.body.dataset.drawn = Number(document.body.dataset.drawn || 0) + 1;
  }));
}

// No answer may stand below a text that it is not about.
function clear() {
  panels = [];
  byId("runs").replaceChildren();
  byId("controls").hidden = true;
  byId("state").textContent = "";
  byId("problem").textContent = "";
}

let request = null;
async function ask() {
  const [text, pair] = [byId("text").value, byId("pair") ? byId("pair").value : null];
  if (request) request.abort();
  if (!text.trim() || (pair !== null && !pair.trim())) {
    clear();
    return;
  }
  request = new AbortController();
  byId("state").textContent = "Reading …";
  try {
    const reply = await fetch("explain", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ text, pair }),
      signal: request.signal,
    });
    const found = await reply.json();
    byId("problem").textContent = found.error ?? "";
    byId("state").textContent = "";
    if (!found.error) show(found.results);
  } catch (error) {
    if (error.name === "AbortError") return;
    byId("state").textContent = "";
    byId("problem").textContent = "The explorer does not answer: it was ended, or the text is too long.";
  }
}

function start() {
  for (const id of ["sort", "looks", "layer"]) byId(id).addEventListener("change", arrange);
  byId("least").addEventListener("input", arrange);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    colours = readColours();
    for (const panel of panels) {
      for (const head of panel.heads) head.bitmap = null;
      panel.draw();
    }
  });
  let resized = 0;
  addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(() => {
      for (const panel of panels) panel.draw();
    }, WAIT);
  });
  if (DATA.live) {
    let typed = 0;
    byId("form").addEventListener("input", () => {
      clearTimeout(typed);
      typed = setTimeout(ask, WAIT);
    });
  }
  if (DATA.results) show(DATA.results);
}

start();
