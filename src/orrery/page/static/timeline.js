// A run in time: what each node did and waited for, nested; and its space-time diagram.

import { fill, get, h, quantity, shortId, table } from './kit.js';
import { Colours, Latest, Tip, cross, fit, gestures, hatch, palette, sheet, shorten, ticks, time } from './drawing.js';
import { SpaceTime, digits, leftOf } from './spacetime.js';

const TOP = 26;
const BAR = 17;
const FOOT = 10;
const MANY = 200000;
const OWN = ['down', 'paused', 'fault', 'lost', 'emit'];
const WORDS = { ask: 'waits for an answer', serve: 'handles a message', compute: 'computes', transfer: 'sends bulk data', emit: 'reports', lost: 'says something that is lost', down: 'is down', paused: 'stands still', fault: 'a fault' };

export async function show(main, context) {
  sheet();
  const { args, query, signal } = context;
  if (!args.length) { fill(main, h('h1', {}, 'Timeline'), h('p', {}, 'Choose a run first: ', h('a', { href: '#/runs' }, 'all runs'))); return; }
  const id = args[0];
  const about = await get(`/api/timeline/${id}`, signal);
  context.wide();
  context.title('Timeline');
  const colours = new Colours();
  const sums = h('div', {});
  const count = () => {
    fill(sums, h('p', { class: 'waiting' }, 'One moment …'));
    get(`/api/timeline/${id}/totals`, signal).then((found) => fill(sums, totals(found, spans))).catch((failure) => { if (!signal.aborted) fill(sums, h('p', {}, failure.message)); });
  };
  const place = h('div', { class: 'card flat' });
  const search = h('input', { type: 'search', placeholder: 'Find a name: append, vote …', maxlength: '60', 'aria-label': 'Find spans by name' });
  const hits = h('span', { class: 'soft hits', role: 'status' });
  const tabs = h('div', { class: 'tabs', role: 'tablist' });
  const spans = new Spans(id, about, colours, signal);
  const diagram = new SpaceTime({ signal, colours, until: about.end_s, load: (params) => get(`/api/timeline/${id}/diagram?${params}`, signal) });
  diagram.end = about.end_s;
  const choose = (which) => {
    fill(tabs, [['spans', 'Timeline'], ['diagram', 'Space-time']].map(([name, label]) => h('button', { type: 'button', role: 'tab', 'aria-selected': name === which ? 'true' : 'false', onclick: () => choose(name) }, label)));
    fill(place, which === 'spans' ? spans.element : diagram.element);
    if (which === 'spans') spans.later();
    else { diagram.from = spans.from; diagram.until = spans.until; diagram.later(); }
  };
  search.addEventListener('input', () => spans.find(search.value, hits), { signal });
  spans.onFind = (name) => { search.value = name; spans.find(name, hits); };
  diagram.options.onNode = (node) => { choose('spans'); spans.only(node); };
  fill(main, h('p', { class: 'over' }, h('a', { href: `#/run/${id}` }, `run ${shortId(about.id)}`)), h('h1', {}, 'Timeline'),
    h('p', { class: 'meta' }, h('span', {}, shorten(about.part, 80)), h('span', {}, `${about.nodes.toLocaleString('en-GB')} nodes`), h('span', {}, `seed ${about.seed}`), h('span', {}, time(about.seconds)), h('span', {}, `${about.messages.toLocaleString('en-GB')} messages`),
      about.same ? h('span', { class: 'good' }, 'made again, same digest') : h('span', { class: 'bad' }, 'made again with ANOTHER digest: the code has changed since')),
    about.violations.length ? h('ul', { class: 'found' }, about.violations.map((each) => h('li', {}, h('b', { class: 'bad' }, each.kind.replaceAll('_', ' ')), ' ', each.message))) : null,
    h('div', { class: 'timeline-head' }, tabs, h('div', { class: 'search' }, search), hits, h('span', { class: 'room' }),
      h('button', { type: 'button', onclick: () => { spans.whole(); diagram.whole(); } }, 'Whole run'),
      h('a', { class: 'button', href: `/api/timeline/${id}/trace.json`, download: '' }, 'Perfetto file'), h('a', { class: 'button', href: `#/playground?run=${id}` }, 'Play with it')),
    place, h('h2', {}, 'Where the time went'), sums);
  // Adding up a large run takes a while, and would keep the picture waiting.
  if (about.messages > MANY) fill(sums, h('button', { type: 'button', onclick: count }, `Add up ${about.messages.toLocaleString('en-GB')} messages`));
  else count();
  choose(query.get('view') === 'diagram' ? 'diagram' : 'spans');
}

function totals(about, spans) {
  const longest = Math.max(...about.totals.map((row) => row.total_s), 1e-12);
  const p = palette();
  return table(['what', 'kind', { text: 'how often', right: true }, { text: 'in all', right: true }, { text: 'mean', right: true }, { text: 'longest', right: true }],
    about.totals.slice(0, 40).map((row) => [
      h('button', { type: 'button', class: 'when', onclick: () => { spans.onFind(row.name); window.scrollTo({ top: 0, behavior: 'smooth' }); } }, row.name),
      h('span', { class: 'kindname soft' }, WORDS[row.kind] || row.kind), row.count.toLocaleString('en-GB'),
      [row.total_s > 0 && bar(row.total_s / longest, p), row.total_s ? quantity(row.total_s, 's') : '–'], row.mean_s ? quantity(row.mean_s, 's') : '–', row.longest_s ? quantity(row.longest_s, 's') : '–']),
    { label: 'Totals by name' });
}

const bar = (share, p) => h('span', { class: 'mean', 'aria-hidden': 'true', style: { width: `${Math.round(share * 90)}px`, background: p.part, 'margin-right': '.5rem' } });

class Spans {
  constructor(id, about, colours, signal) {
    Object.assign(this, { id, about, colours, signal, from: 0, until: about.end_s, end: about.end_s, lo: 0, hi: null, view: null, words: '', trail: [], picked: 0, left: 118 });
    this.latest = new Latest(signal);
    this.canvas = h('canvas', { class: 'spans', tabindex: '0', role: 'application', 'aria-label': 'Timeline. Arrow keys move, plus and minus zoom, up and down choose a line, Enter unfolds it, Backspace folds it.' });
    this.crumbs = h('nav', { class: 'crumbs', 'aria-label': 'Folds', hidden: true });
    this.saying = h('p', { class: 'soft saying' });
    this.frame = h('div', { class: 'diagram-frame' }, this.canvas);
    this.legend = h('ul', { class: 'legend' });
    this.element = h('div', {}, this.crumbs, this.frame, this.saying, this.legend);
    this.tip = new Tip(this.frame);
    gestures(this.canvas, { pan: (dx) => this.pan(dx), zoom: (factor, x) => this.zoom(factor, x), hover: (x, y) => this.hover(x, y), tap: (x, y) => this.tap(x, y) }, signal);
    this.canvas.addEventListener('keydown', (event) => this.key(event), { signal });
    const watch = new ResizeObserver(() => this.draw());
    watch.observe(this.canvas);
    signal.addEventListener('abort', () => watch.disconnect());
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.reload(), 80);
    this.draw();
  }

  reload() {
    const span = this.until - this.from;
    const from = Math.max(0, this.from - span * 0.25);
    const params = new URLSearchParams({ from: digits(from), until: digits(Math.min(this.end, this.until + span * 0.25)), lanes: '24' });
    if (this.lo > 0) params.set('lo', String(this.lo));
    if (this.hi !== null) params.set('hi', String(this.hi));
    if (this.words) params.set('find', this.words);
    this.latest.ask(() => get(`/api/timeline/${this.id}/view?${params}`, this.signal), (view) => {
      this.view = view;
      this.size();
      this.describe();
      this.draw();
    }, (failure) => fill(this.saying, failure.message));
  }

  describe() {
    const view = this.view;
    fill(this.crumbs, this.trail.map(([, , name], i) => h('button', { type: 'button', class: 'small', onclick: () => this.back(i) }, name)), h('span', { class: 'soft' }, this.place || ''));
    this.crumbs.hidden = !this.trail.length;
    fill(this.saying, view.left_out ? `${view.found.toLocaleString('en-GB')} spans; the ${view.spans.length.toLocaleString('en-GB')} longest are drawn, the others as a grey haze: zoom in` : `${view.found.toLocaleString('en-GB')} span${view.found === 1 ? '' : 's'}`,
      '. Wheel or pinch to zoom, drag to move, click a name on the left to unfold it.');
    const p = palette();
    const names = new Map();
    const kinds = new Set();
    for (const row of view.spans) {
      const kind = view.kinds[row[4]];
      if (OWN.includes(kind)) kinds.add(kind);
      else names.set(view.names[row[5]], (names.get(view.names[row[5]]) || 0) + 1);
    }
    const top = [...names].sort((a, b) => b[1] - a[1]).slice(0, 8);
    const item = (colour, text) => h('li', {}, h('span', { class: 'mean', 'aria-hidden': 'true', style: { width: '16px', background: colour } }), text);
    fill(this.legend, top.map(([name]) => item(this.colours.of(name, p.series), name)), [...kinds].map((kind) => item(this.tint(kind, p, ''), WORDS[kind] || kind)));
  }

  // By lane: how many rows of nested spans it needs.
  size() {
    this.left = leftOf(this.view.lanes);
    const rows = this.view.lanes.map(() => 1);
    for (const [, , lane, depth] of this.view.spans) if (lane >= 0) rows[lane] = Math.max(rows[lane], Math.min(depth + 1, 6));
    this.tops = [];
    let at = TOP;
    for (const count of rows) { this.tops.push(at); at += count * BAR + 11; }
    this.canvas.style.setProperty('height', `${Math.max(120, at + FOOT)}px`);
  }

  x(at) { return this.left + ((at - this.from) / (this.until - this.from)) * (this.canvas.clientWidth - this.left - 12); }

  at(x) { return this.from + ((x - this.left) / (this.canvas.clientWidth - this.left - 12)) * (this.until - this.from); }

  y(lane, depth) { return this.tops[lane] + 4 + Math.min(depth, 5) * BAR; }

  laneAt(y) { let found = -1; this.tops?.forEach((top, i) => { if (y >= top) found = i; }); return found; }

  set(from, until) {
    const span = Math.max(until - from, 2e-9);
    this.from = Math.max(0, Math.min(from, this.end - span));
    this.until = Math.min(this.end, this.from + span);
    this.later();
  }

  pan(dx) { const by = (dx / (this.canvas.clientWidth - this.left - 12)) * (this.until - this.from); this.set(this.from - by, this.until - by); }

  zoom(factor, x) {
    const middle = Math.max(this.from, Math.min(this.at(x), this.until));
    const span = Math.min(Math.max((this.until - this.from) * factor, 2e-9), this.end);
    const share = (middle - this.from) / (this.until - this.from);
    this.set(middle - span * share, middle + span * (1 - share));
  }

  whole() { this.set(0, this.end); }

  only(node) {
    const lane = this.view?.lanes.findIndex((each) => each.node === node);
    if (lane >= 0) { this.picked = lane; this.draw(); }
  }

  open(lane) {
    const one = this.view?.lanes[lane];
    if (!one || one.node !== undefined) return;
    this.trail.push([this.lo, this.hi, this.trail.length ? this.place : 'all nodes']);
    Object.assign(this, { lo: one.lo, hi: one.hi, place: one.name });
    this.later();
  }

  back(to) {
    if (!this.trail.length) return;
    const steps = to === undefined ? this.trail.length - 1 : to;
    [this.lo, this.hi, this.place] = this.trail[steps];
    this.trail.length = steps;
    this.later();
  }

  tap(x, y) {
    const lane = this.laneAt(y);
    if (lane < 0) return;
    this.picked = lane;
    if (x < this.left) { this.open(lane); this.draw(); return; }
    const span = this.spanAt(x, y);
    if (span && span[1] > span[0]) this.set(span[0] - (span[1] - span[0]) * 0.3, span[1] + (span[1] - span[0]) * 0.3);
    this.draw();
  }

  key(event) {
    const span = this.until - this.from;
    const middle = this.left + (this.canvas.clientWidth - this.left) / 2;
    const acts = {
      ArrowLeft: () => this.set(this.from - span / 8, this.until - span / 8), ArrowRight: () => this.set(this.from + span / 8, this.until + span / 8),
      ArrowUp: () => { this.picked = Math.max(0, this.picked - 1); this.draw(); }, ArrowDown: () => { this.picked = Math.min(this.view.lanes.length - 1, this.picked + 1); this.draw(); },
      '+': () => this.zoom(0.7, middle), '=': () => this.zoom(0.7, middle), '-': () => this.zoom(1.4, middle), Enter: () => this.open(this.picked), Backspace: () => this.back(), Escape: () => this.back(), Home: () => this.whole(),
    };
    if (!acts[event.key] || !this.view) return;
    event.preventDefault();
    acts[event.key]();
  }

  find(words, place) {
    this.words = words.trim().slice(0, 60);
    this.later();
    if (!this.words) { fill(place); return; }
    this.searches = this.searches || new Latest(this.signal);
    this.searches.ask(() => get(`/api/timeline/${this.id}/search?${new URLSearchParams({ find: this.words })}`, this.signal), (found) => {
      let at = -1;
      const go = (by) => {
        at = (at + by + found.hits.length) % found.hits.length;
        const hit = found.hits[at];
        const span = Math.max(hit.end_s - hit.start_s, this.end / 400);
        this.set(hit.start_s - span * 2, hit.end_s + span * 2);
      };
      fill(place, `${found.count.toLocaleString('en-GB')} found `, found.hits.length ? [h('button', { type: 'button', class: 'small', onclick: () => go(-1), 'aria-label': 'the one before' }, '◂'), ' ', h('button', { type: 'button', class: 'small', onclick: () => go(1), 'aria-label': 'the next one' }, '▸')] : null);
    });
  }

  spanAt(x, y) {
    if (!this.view) return null;
    let best = null;
    let off = 7;
    for (const span of this.view.spans) {
      if (span[2] < 0) continue;
      const top = this.y(span[2], span[3]);
      if (y < top - 1 || y > top + BAR - 2) continue;
      const x1 = this.x(span[0]);
      const x2 = Math.max(this.x(span[1]), x1);
      const away = x < x1 ? x1 - x : x > x2 ? x - x2 : 0;
      if (away < off) { off = away; best = span; }
    }
    return best;
  }

  hover(x, y) {
    if (x === null || !this.view) { this.tip.hide(); return; }
    const lane = this.laneAt(y);
    if (x < this.left) {
      const one = this.view.lanes[lane];
      this.canvas.style.setProperty('cursor', one && one.node === undefined ? 'pointer' : 'default');
      if (one && one.node === undefined) this.tip.show(x, y, [one.name, `${one.count.toLocaleString('en-GB')} nodes: click to unfold`]); else this.tip.hide();
      return;
    }
    const span = this.spanAt(x, y);
    this.canvas.style.setProperty('cursor', span ? 'zoom-in' : 'grab');
    if (!span) { this.tip.hide(); return; }
    const [start, stop, , , kind, name, node, to, size, told] = span;
    const what = this.view.kinds[kind];
    const who = node >= this.about.nodes ? 'a client' : `node ${node}`;
    const other = to < 0 ? '' : to >= this.about.nodes ? 'a client' : `node ${to}`;
    this.tip.show(x, y, [this.view.names[name], `${who} ${WORDS[what]}${other ? (what === 'serve' ? ` of ${other}` : what === 'ask' ? ` of ${other}` : ` to ${other}`) : ''}`,
      stop > start ? `${time(start)} to ${time(stop)}: ${time(stop - start)}` : `at ${time(start)}`, told || null, size ? quantity(size, 'B') : null]);
  }

  tint(kind, p, name) {
    const own = { down: p.soft, paused: p.part, fault: p.open, lost: p.bad, emit: p.ink };
    if (own[kind]) return own[kind];
    return name ? this.colours.of(name, p.series) : { ask: p.series[0], serve: p.series[2], compute: p.series[3], transfer: p.series[1] }[kind];
  }

  draw() {
    if (!this.view || !this.tops || !this.canvas.clientWidth) return;
    const { pen, wide, high } = fit(this.canvas);
    const p = palette();
    pen.font = `12px ${p.sans}`;
    pen.textBaseline = 'middle';
    const { step, at } = ticks(this.from, this.until, wide - this.left - 12);
    pen.textAlign = 'center';
    for (const tick of at) {
      const x = Math.round(this.x(tick)) + 0.5;
      pen.strokeStyle = p.line;
      pen.beginPath(); pen.moveTo(x, TOP - 6); pen.lineTo(x, high - FOOT); pen.stroke();
      pen.fillStyle = p.soft;
      pen.fillText(time(tick, step), Math.max(this.left + 18, Math.min(x, wide - 30)), 11);
    }
    this.view.lanes.forEach((lane, i) => {
      const top = this.tops[i];
      const next = this.tops[i + 1] || high - FOOT;
      if (i === this.picked && document.activeElement === this.canvas) { pen.fillStyle = p.tint; pen.fillRect(0, top - 4, wide, next - top); }
      pen.strokeStyle = p.line;
      pen.beginPath(); pen.moveTo(0, next - 4.5); pen.lineTo(wide, next - 4.5); pen.stroke();
      pen.fillStyle = p.ink;
      pen.textAlign = 'right';
      pen.font = `${lane.node === undefined ? '600 11.5px' : '12px'} ${p.sans}`;
      pen.fillText(shorten(lane.name, 28), this.left - 12, top + 4 + BAR / 2 - 1);
    });
    pen.save();
    pen.beginPath(); pen.rect(this.left - 2, 0, wide, high); pen.clip();
    this.haze(pen, p);
    this.bars(pen, p, high);
    pen.restore();
  }

  haze(pen, p) {
    if (!this.view.heat.length) return;
    const most = Math.max(1, ...this.view.heat.map((row) => Math.max(...row)));
    const step = (this.view.until_s - this.view.from_s) / this.view.bins;
    pen.fillStyle = p.soft;
    this.view.heat.forEach((row, lane) => row.forEach((count, bin) => {
      if (!count) return;
      pen.globalAlpha = 0.08 + 0.3 * (count / most);
      const x = this.x(this.view.from_s + bin * step);
      pen.fillRect(x, this.tops[lane] + 3, Math.max(1, this.x(this.view.from_s + (bin + 1) * step) - x), BAR - 3);
    }));
    pen.globalAlpha = 1;
  }

  bars(pen, p, high) {
    const asked = this.words.toLowerCase();
    pen.textAlign = 'left';
    pen.font = `11px ${p.sans}`;
    for (const [start, stop, lane, depth, kind, nameAt] of this.view.spans) {
      const x1 = this.x(start);
      const x2 = this.x(stop);
      if (x2 < this.left - 6 || x1 > this.canvas.clientWidth) continue;
      const name = this.view.names[nameAt];
      const what = this.view.kinds[kind];
      pen.globalAlpha = asked && !name.toLowerCase().includes(asked) ? 0.15 : 1;
      if (lane < 0) { pen.fillStyle = p.openTint; pen.globalAlpha *= 0.7; pen.fillRect(x1, TOP - 4, Math.max(2, x2 - x1), high - TOP - FOOT); continue; }
      const y = this.y(lane, depth);
      const colour = this.tint(what, p, name);
      if (what === 'emit') { pen.fillStyle = colour; pen.beginPath(); pen.moveTo(x1, y + 2); pen.lineTo(x1 + 5, y + 7); pen.lineTo(x1, y + 12); pen.lineTo(x1 - 5, y + 7); pen.closePath(); pen.fill(); continue; }
      if (what === 'lost') { pen.strokeStyle = p.bad; pen.lineWidth = 2; cross(pen, x1, y + 7, 4); continue; }
      const wide = Math.max(1.5, x2 - x1);
      pen.fillStyle = what === 'down' ? p.tint : colour;
      pen.beginPath(); pen.roundRect(x1, y, wide, BAR - 4, Math.min(3, wide / 2)); pen.fill();
      if (what === 'down') hatch(pen, Math.max(this.left, x1), y, Math.min(wide, this.canvas.clientWidth), BAR - 4, p.soft);
      if (wide > 34) {
        const from = Math.max(x1, this.left);
        const room = Math.min(x2, this.canvas.clientWidth) - from - 8;
        const text = shorten(what === 'ask' ? `ask ${name}` : what === 'down' ? 'down' : name, Math.max(3, Math.floor(room / 6.3)));
        if (room > 24) { pen.fillStyle = what === 'down' ? p.ink : p.card; pen.fillText(text, from + 4, y + 7); }
      }
    }
    pen.globalAlpha = 1;
  }
}
