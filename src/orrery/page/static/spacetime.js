// The space-time diagram: a line for each node (or for a fold of many), an arrow for each message
// (or a bundle of many), time to the right. It asks the server for what is in sight, so that a run
// of 100,000 nodes and a million messages is as quick as a small one.

import { h, fill, quantity } from './kit.js';
import { Colours, Latest, Tip, arrowHead, cross, fit, gestures, hatch, palette, shorten, ticks, time } from './drawing.js';

const TOP = 26;
const RIGHT = 14;
const FOOT = 12;
const DECIDED = ['decided', 'delivered', 'ordered', 'output', 'said', 'leads'];

export class SpaceTime {
  // options: load(params) gives a view; onNode(node, x, y); onCursor(time); signal; label; cursor (true to draw one)
  constructor(options) {
    this.options = options;
    this.signal = options.signal;
    this.colours = options.colours || new Colours();
    this.latest = new Latest(this.signal);
    this.view = null;
    this.from = 0;
    this.until = options.until || 1;
    this.end = this.until;
    this.lo = 0;
    this.hi = null;
    this.trail = [];
    this.cursor = null;
    this.picked = 0;
    this.pins = [];
    this.left = 118;
    this.build();
  }

  build() {
    this.canvas = h('canvas', { class: 'diagram', tabindex: '0', role: 'application', 'aria-label': this.options.label
      || 'Space-time diagram. Arrow keys move, plus and minus zoom, up and down choose a line, Enter opens it.' });
    this.crumbs = h('nav', { class: 'crumbs', 'aria-label': 'Folds' });
    this.legend = h('ul', { class: 'legend' });
    this.words = h('p', { class: 'soft saying', 'aria-live': 'polite' });
    this.frame = h('div', { class: 'diagram-frame' }, this.canvas);
    this.element = h('div', { class: 'spacetime' }, this.crumbs, this.frame, this.words, this.legend);
    this.tip = new Tip(this.frame);
    gestures(this.canvas, {
      pan: (dx, dy) => this.pan(dx, dy),
      zoom: (factor, x) => this.zoom(factor, x),
      hover: (x, y) => this.hover(x, y),
      tap: (x, y) => this.tap(x, y),
      grab: (x, y) => this.grab(x, y),
    }, this.signal);
    this.canvas.addEventListener('keydown', (event) => this.key(event), { signal: this.signal });
    this.canvas.addEventListener('dblclick', (event) => this.open(this.laneAt(event.offsetY)), { signal: this.signal });
    const watch = new ResizeObserver(() => this.draw());
    watch.observe(this.canvas);
    const dark = matchMedia('(prefers-color-scheme: dark)');
    dark.addEventListener('change', () => this.draw(), { signal: this.signal });
    this.signal.addEventListener('abort', () => watch.disconnect());
  }

  // -- what is in sight

  async load() {
    const span = this.until - this.from;
    const from = Math.max(0, this.from - span * 0.3);
    const until = Math.min(this.end, this.until + span * 0.3);
    const params = new URLSearchParams({ from: digits(from), until: digits(Math.max(until, from + 1e-9)), lanes: String(this.most()), bins: String(Math.max(60, Math.min(300, Math.round(this.canvas.clientWidth / 5)))) });
    if (this.lo > 0) params.set('lo', String(this.lo));
    if (this.hi !== null) params.set('hi', String(this.hi));
    if (this.pins.length) params.set('pin', this.pins.join(','));
    return this.options.load(params);
  }

  reload() {
    this.latest.ask(() => this.load(), (view) => {
      this.view = view;
      if (this.fresh === undefined) { this.fresh = false; }
      this.end = view.end_s;
      this.size();
      this.describe();
      this.draw();
      this.options.onView?.(view);
    }, (failure) => fill(this.words, failure.message));
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.reload(), 90);
    this.draw();
  }

  most() { return this.options.lanes || 28; }

  show(from, until) {
    const span = Math.max(until - from, 2e-9);
    this.from = Math.max(0, Math.min(from, this.end - span));
    this.until = Math.min(this.end, this.from + span);
    this.options.onWindow?.(this.from, this.until);
    this.later();
  }

  setCursor(at, follow) {
    this.cursor = at;
    const span = this.until - this.from;
    if (follow && (at < this.from + span * 0.04 || at > this.until - span * 0.12)) {
      this.show(at - span * 0.35, at + span * 0.65);
    } else this.draw();
  }

  whole() { this.show(0, this.end); }

  // Nodes out of sight share one more line at the foot.
  rest() { return this.view.lanes.reduce((sum, lane) => sum + lane.hi - lane.lo, 0) < this.view.nodes ? 1 : 0; }

  size() {
    this.left = leftOf(this.view.lanes, this.options.says && ((lane) => this.options.says(lane.node)));
    const rows = this.view.lanes.length + this.rest();
    const each = rows <= 8 ? 46 : rows <= 14 ? 36 : rows <= 20 ? 28 : 22;
    this.canvas.style.setProperty('height', `${TOP + rows * each + FOOT}px`);
  }

  // -- places

  x(at) { return this.left + ((at - this.from) / (this.until - this.from)) * (this.canvas.clientWidth - this.left - RIGHT); }

  at(x) { return this.from + ((x - this.left) / (this.canvas.clientWidth - this.left - RIGHT)) * (this.until - this.from); }

  rowHigh() { return (this.canvas.clientHeight - TOP - FOOT) / Math.max(1, this.view.lanes.length + this.rest()); }

  y(lane) { return TOP + (lane + 0.5) * this.rowHigh(); }

  laneAt(y) {
    if (!this.view) return -1;
    const lane = Math.floor((y - TOP) / this.rowHigh());
    return lane >= 0 && lane < this.view.lanes.length ? lane : -1;
  }

  // -- hands

  pan(dx, dy) {
    const by = (dx / (this.canvas.clientWidth - this.left - RIGHT)) * (this.until - this.from);
    this.show(this.from - by, this.until - by);
    if (this.view && this.hi !== null && Math.abs(dy) > 1) {
      // Folded lines are a stretch of all nodes: dragging up or down moves the stretch.
      const many = this.hi - this.lo;
      const shift = Math.round((-dy / this.canvas.clientHeight) * many);
      const lo = Math.max(0, Math.min(this.view.nodes - many, this.lo + shift));
      if (lo !== this.lo) { this.lo = lo; this.hi = lo + many; this.later(); }
    }
  }

  zoom(factor, x) {
    const middle = Math.max(this.from, Math.min(this.at(x), this.until));
    const span = Math.min(Math.max((this.until - this.from) * factor, 2e-9), this.end);
    const share = (middle - this.from) / (this.until - this.from);
    this.show(middle - span * share, middle + span * (1 - share));
  }

  grab(x, y) {
    if (!this.options.onCursor || y > TOP || x < this.left) return null;
    const move = (to) => this.options.onCursor(Math.max(0, Math.min(this.at(to), this.end)));
    return { move, end: move };
  }

  tap(x, y) {
    if (!this.view) return;
    this.tip.hide();
    const lane = this.laneAt(y);
    if (y <= TOP && x >= this.left && this.options.onCursor) { this.options.onCursor(this.at(x)); return; }
    if (lane < 0) return;
    this.picked = lane;
    if (x < this.left || this.view.lanes[lane].node === undefined) this.open(lane);
    else if (this.options.onCursor) this.options.onCursor(Math.max(0, Math.min(this.at(x), this.end)));
    this.draw();
  }

  open(lane) {
    if (lane < 0 || !this.view) return;
    const one = this.view.lanes[lane];
    if (one.node !== undefined) { this.options.onNode?.(one.node); return; }
    this.trail.push([this.lo, this.hi, this.trail.length ? this.place : 'all nodes']);
    this.place = one.name;
    this.lo = one.lo;
    this.hi = one.hi;
    this.later();
  }

  back(to) {
    if (!this.trail.length) return;
    const steps = to === undefined ? this.trail.length - 1 : to;
    [this.lo, this.hi, this.place] = this.trail[steps];
    this.trail.length = steps;
    this.later();
  }

  key(event) {
    const span = this.until - this.from;
    const acts = {
      ArrowLeft: () => this.show(this.from - span / 8, this.until - span / 8),
      ArrowRight: () => this.show(this.from + span / 8, this.until + span / 8),
      ArrowUp: () => { this.picked = Math.max(0, this.picked - 1); this.draw(); },
      ArrowDown: () => { this.picked = Math.min(this.view.lanes.length - 1, this.picked + 1); this.draw(); },
      '+': () => this.zoom(0.7, this.left + (this.canvas.clientWidth - this.left) / 2),
      '=': () => this.zoom(0.7, this.left + (this.canvas.clientWidth - this.left) / 2),
      '-': () => this.zoom(1.4, this.left + (this.canvas.clientWidth - this.left) / 2),
      Enter: () => this.open(this.picked),
      Backspace: () => this.back(),
      Escape: () => this.back(),
      Home: () => this.whole(),
    };
    if (!acts[event.key] || !this.view) return;
    event.preventDefault();
    acts[event.key]();
  }

  hover(x, y) {
    if (x === null || !this.view) { this.tip.hide(); this.near = null; return; }
    const lane = this.laneAt(y);
    const found = x < this.left ? null : this.nearest(x, y);
    this.canvas.style.setProperty('cursor', y <= TOP && this.options.onCursor ? 'col-resize' : x < this.left && lane >= 0 ? 'pointer' : found ? 'default' : 'grab');
    if (found) this.tip.show(x, y, found);
    else if (x < this.left && lane >= 0) {
      const one = this.view.lanes[lane];
      this.tip.show(x, y, [one.name, one.node === undefined ? `${one.count.toLocaleString('en-GB')} nodes: click to unfold` : 'click for its story']);
    } else this.tip.hide();
  }

  nearest(x, y) {
    let best = 9;
    let lines = null;
    for (const mark of this.view.marks) {
      const [kind, name, start, stop, lane, node, told] = mark;
      if (lane < 0) continue;
      const high = this.y(lane);
      const inside = x >= this.x(start) - 6 && x <= Math.max(this.x(stop), this.x(start)) + 6;
      const off = Math.abs(y - high) + (kind === 'emit' ? Math.abs(x - this.x(start)) : 0);
      if (inside && off < (kind === 'emit' ? 9 : 7) && off < best + 4) {
        best = Math.min(best, off);
        const what = { emit: `node ${node} reports ${told || name}`, down: `node ${node} is down`, paused: `node ${node} stands still`, fault: `${name.toLowerCase()} at node ${node}`, link: told, compute: `node ${node}: ${name}`, transfer: `node ${node} sends ${name}` }[kind] || name;
        lines = [what, start === stop ? time(start) : `${time(start)} to ${time(stop)}`];
      }
    }
    if (this.view.folded) return lines || this.nearestCell(x, y);
    for (const arrow of this.view.arrows) {
      const [sent, got, a, b, src, dst, method, size, flags] = arrow;
      const [x1, y1, x2, y2] = this.ends(arrow, a, b, sent, got);
      const off = distance(x, y, x1, y1, x2, y2);
      if (off < best) {
        best = off;
        const name = this.view.methods[method];
        lines = [`${name}${flags & 1 ? ' (answer)' : ''}`, `${this.nodeName(src)} → ${this.nodeName(dst)}`,
          flags & 2 ? `sent ${time(sent)}, never arrives` : `${time(sent)} to ${time(got)}, ${time(got - sent)} on the way`,
          size ? quantity(size, 'B') : null];
      }
    }
    return lines;
  }

  nearestCell(x, y) {
    let best = 8;
    let lines = null;
    const step = (this.view.until_s - this.view.from_s) / this.view.bins;
    for (const [a, b, bin, count, took, size, lost] of this.view.cells) {
      const start = this.view.from_s + (bin + 0.5) * step;
      const off = distance(x, y, this.x(start), this.y(a), this.x(start + took), this.y(b));
      if (off < best) {
        best = off;
        lines = [`${count.toLocaleString('en-GB')} messages`, `${this.laneName(a)} → ${this.laneName(b)}`,
          `around ${time(start)}, ${time(took)} on the way, ${quantity(size, 'B')}`, lost ? `${lost} of them lost` : null];
      }
    }
    return lines;
  }

  laneName(lane) { return this.view.lanes[lane]?.name || 'all others'; }

  nodeName(node) {
    const outside = this.view.lanes.find((lane) => lane.node === node);
    return outside ? outside.name : `node ${node}`;
  }

  // -- drawing

  describe() {
    const view = this.view;
    const crumbs = this.trail.map(([, , name], i) => h('button', { class: 'small', type: 'button', onclick: () => this.back(i) }, name || 'all nodes'));
    fill(this.crumbs, this.trail.length ? [crumbs, h('span', { class: 'soft' }, this.place)] : null);
    this.crumbs.hidden = !this.trail.length;
    const many = view.nodes > view.lanes.length ? `${view.nodes.toLocaleString('en-GB')} nodes folded to ${view.lanes.length} lines` : '';
    const folded = view.folded ? `${view.messages.toLocaleString('en-GB')} messages, drawn as bundles: zoom in to see each` : '';
    fill(this.words, [many, folded].filter(Boolean).join('; '));
    this.words.hidden = !many && !folded;
    const names = view.folded ? view.methods.map(([name]) => name) : view.methods;
    const p = palette();
    const signs = new Set(view.marks.map((mark) => mark[0]).concat(view.mark_counts.map((count) => count[0])));
    const items = view.folded ? view.methods.map(([name, count]) => h('li', {}, `${name}: ${count.toLocaleString('en-GB')}`)) : names.slice(0, 8).map((name) => sign(line(this.colours.of(name, p.series)), name));
    if (view.folded) items.push(sign(line(p.part), 'a bundle of messages'), sign(line(p.bad), 'most of them lost'));
    if (!view.folded && view.arrows.some((arrow) => arrow[8] & 1)) items.push(sign(line(p.soft, true), 'an answer'));
    if (!view.folded && view.arrows.some((arrow) => arrow[8] & 2)) items.push(sign('✕', 'lost on the way', 'bad'));
    if (signs.has('emit')) items.push(sign('◆', 'reported by the node'));
    if (signs.has('down')) items.push(view.folded ? null : sign('✕', 'crash', 'bad'), sign('▨', 'down', 'soft'));
    if (signs.has('paused')) items.push(sign('▬', 'stands still', 'part'));
    if (signs.has('link')) items.push(sign('┄', 'its link is cut or late', 'bad'));
    if (signs.has('fault')) items.push(sign('▬', 'another fault', 'open'));
    fill(this.legend, items);
  }

  draw() {
    if (!this.view || !this.canvas.clientWidth) return;
    const { pen, wide, high } = fit(this.canvas);
    const p = palette();
    pen.font = `12px ${p.sans}`;
    pen.textBaseline = 'middle';
    this.axis(pen, p, wide, high);
    this.rails(pen, p, wide);
    this.others(pen, p, wide);
    pen.save();
    pen.beginPath();
    pen.rect(this.left - 4, 0, wide - this.left + 4, high);
    pen.clip();
    this.behind(pen, p, high);
    this.bands(pen, p);
    if (this.view.folded) this.bundles(pen, p);
    else this.arrows(pen, p);
    this.marks(pen, p);
    this.now(pen, p, high);
    pen.restore();
  }

  axis(pen, p, wide, high) {
    const { step, at } = ticks(this.from, this.until, wide - this.left - RIGHT);
    pen.strokeStyle = p.line;
    pen.fillStyle = p.soft;
    pen.lineWidth = 1;
    pen.textAlign = 'center';
    for (const tick of at) {
      const x = Math.round(this.x(tick)) + 0.5;
      pen.beginPath(); pen.moveTo(x, TOP - 6); pen.lineTo(x, high - FOOT); pen.stroke();
      pen.fillText(time(tick, step), Math.max(this.left + 18, Math.min(x, wide - 30)), 11);
    }
  }

  rails(pen, p, wide) {
    const row = this.rowHigh();
    this.view.lanes.forEach((lane, i) => {
      const y = this.y(i);
      if (i === this.picked && document.activeElement === this.canvas) {
        pen.fillStyle = p.tint;
        pen.fillRect(0, y - row / 2, wide, row);
      }
      pen.strokeStyle = p.soft;
      pen.globalAlpha = 0.5;
      pen.lineWidth = lane.node === undefined ? Math.min(5, 1 + Math.log10(lane.count)) : 1;
      pen.beginPath(); pen.moveTo(this.left, y); pen.lineTo(wide - RIGHT, y); pen.stroke();
      pen.globalAlpha = 1;
      pen.textAlign = 'right';
      const told = lane.node === undefined ? `${lane.count.toLocaleString('en-GB')} nodes` : this.options.says?.(lane.node);
      pen.fillStyle = p.ink;
      pen.font = `${lane.node === undefined ? '600 11.5px' : '12px'} ${p.sans}`;
      pen.fillText(shorten(lane.name, 28), this.left - 12, told && row > 30 ? y - 7 : y);
      if (told && row > 30) {
        pen.font = `11px ${p.sans}`;
        pen.fillStyle = p.soft;
        pen.fillText(shorten(told, 24), this.left - 12, y + 8);
      }
    });
  }

  others(pen, p, wide) {
    if (!this.rest()) return;
    const y = this.y(this.view.lanes.length);
    pen.strokeStyle = p.soft;
    pen.setLineDash([2, 5]);
    pen.lineWidth = 1.5;
    pen.beginPath(); pen.moveTo(this.left, y); pen.lineTo(wide - RIGHT, y); pen.stroke();
    pen.setLineDash([]);
    pen.fillStyle = p.soft;
    pen.textAlign = 'right';
    pen.font = `italic 12px ${p.sans}`;
    pen.fillText('all others', this.left - 12, y);
  }

  behind(pen, p, high) {
    // Faults of the whole network, as bands behind everything.
    let row = 0;
    for (const [kind, name, start, stop, lane] of this.view.marks) {
      if (kind !== 'fault' || lane >= 0) continue;
      const x1 = this.x(start);
      const x2 = this.x(stop);
      if (x2 < this.left || x1 > this.canvas.clientWidth) continue;
      pen.fillStyle = p.openTint;
      pen.globalAlpha = 0.75;
      pen.fillRect(x1, TOP - 4, Math.max(2, x2 - x1), high - TOP - FOOT + 4);
      pen.globalAlpha = 1;
      pen.fillStyle = p.open;
      pen.textAlign = 'left';
      pen.font = `11px ${p.sans}`;
      pen.fillText(NETWORK[name] || name.toLowerCase(), Math.max(x1, this.left) + 5, TOP + 4 + 13 * (row % 3));
      row += 1;
    }
  }

  bands(pen, p) {
    const thick = Math.min(14, this.rowHigh() * 0.45);
    for (const [kind, , start, stop, lane] of this.view.marks) {
      if (lane < 0 || kind === 'emit' || kind === 'lost') continue;
      if (kind === 'link') { this.broken(pen, p, this.x(start), this.x(stop), this.y(lane)); continue; }
      this.band(pen, p, kind, this.x(start), this.x(stop), this.y(lane), thick, 1);
    }
    const step = (this.view.until_s - this.view.from_s) / (this.view.bins || 1);
    for (const [kind, lane, first, last, n] of this.view.mark_counts) {
      if (lane < 0 || kind === 'emit' || kind === 'link') continue;
      const count = this.view.lanes[lane].count || 1;
      this.band(pen, p, kind, this.x(this.view.from_s + first * step), this.x(this.view.from_s + (last + 1) * step), this.y(lane), thick, Math.min(1, 0.15 + n / count));
    }
  }

  // A fault of one link: a dotted line beside the lines of its two ends.
  broken(pen, p, x1, x2, y) {
    pen.strokeStyle = p.bad;
    pen.lineWidth = 2;
    pen.setLineDash([2, 4]);
    pen.beginPath(); pen.moveTo(x1, y + 4); pen.lineTo(x2, y + 4); pen.stroke();
    pen.setLineDash([]);
  }

  band(pen, p, kind, x1, x2, y, thick, alpha) {
    const wide = Math.max(1.5, x2 - x1);
    pen.globalAlpha = alpha;
    const fills = { down: p.tint, paused: p.partTint, fault: p.openTint, compute: p.goodTint, transfer: p.openTint };
    pen.fillStyle = fills[kind] || p.tint;
    pen.fillRect(x1, y - thick / 2, wide, thick);
    if (kind === 'down') hatch(pen, Math.max(x1, this.left - 4), y - thick / 2, Math.min(wide, this.canvas.clientWidth), thick, p.soft);
    pen.strokeStyle = { down: p.soft, paused: p.part, fault: p.open, compute: p.good, transfer: p.open }[kind] || p.soft;
    pen.lineWidth = 1;
    pen.strokeRect(x1, y - thick / 2, wide, thick);
    pen.globalAlpha = 1;
  }

  ends(arrow, a, b, sent, got) {
    const below = this.y(this.view.lanes.length);
    const lost = arrow[8] & 2;
    const stop = lost ? sent + this.view.usual_s * 0.5 : got;
    const y1 = a >= 0 ? this.y(a) : below;
    const y2 = b >= 0 ? this.y(b) : below;
    return [this.x(sent), y1, this.x(stop), lost ? y1 + (y2 - y1) * 0.45 : y2];
  }

  arrows(pen, p) {
    const near = [];
    for (const arrow of this.view.arrows) {
      const [sent, got, a, b, , , method, , flags] = arrow;
      const [x1, y1, x2, y2] = this.ends(arrow, a, b, sent, got);
      if (x2 < this.left - 4 || x1 > this.canvas.clientWidth) continue;
      near.push([x1, y1, x2, y2, this.view.methods[method], flags, a < 0 || b < 0]);
    }
    const thin = near.length > 500;
    for (const [x1, y1, x2, y2, name, flags, away] of near) {
      const colour = this.colours.of(name, p.series);
      pen.strokeStyle = colour;
      pen.fillStyle = colour;
      pen.globalAlpha = away ? 0.25 : thin ? 0.45 : 0.85;
      pen.lineWidth = thin ? 1 : 1.5;
      pen.setLineDash(flags & 1 ? [5, 3] : []);
      pen.beginPath(); pen.moveTo(x1, y1); pen.lineTo(x2, y2); pen.stroke();
      pen.setLineDash([]);
      if (flags & 2) { pen.strokeStyle = p.bad; pen.lineWidth = 2; cross(pen, x2, y2, 4); }
      else if (!thin) arrowHead(pen, x2, y2, Math.atan2(y2 - y1, x2 - x1), 7);
    }
    pen.globalAlpha = 1;
    if (near.length <= 120) this.names(pen, p, near);
  }

  names(pen, p, near) {
    const taken = [];
    pen.font = `11px ${p.sans}`;
    pen.textAlign = 'center';
    for (const [x1, y1, x2, y2, name] of near) {
      const text = shorten(name, 18);
      const wide = pen.measureText(text).width;
      if (Math.hypot(x2 - x1, y2 - y1) < wide + 24 || Math.abs(x2 - x1) < 16) continue;
      const x = (x1 + x2) / 2;
      const y = (y1 + y2) / 2;
      if (x - wide / 2 < this.left || taken.some(([a, b, w]) => Math.abs(a - x) < (w + wide) / 2 + 4 && Math.abs(b - y) < 14)) continue;
      taken.push([x, y, wide]);
      pen.fillStyle = p.paper;
      pen.globalAlpha = 0.86;
      pen.fillRect(x - wide / 2 - 3, y - 8, wide + 6, 15);
      pen.globalAlpha = 1;
      pen.fillStyle = this.colours.of(name, p.series);
      pen.fillText(text, x, y);
    }
  }

  bundles(pen, p) {
    const view = this.view;
    const step = (view.until_s - view.from_s) / view.bins;
    const most = Math.max(...view.cells.map((cell) => cell[3]), 1);
    const lanes = view.lanes.length;
    const light = Math.min(1, Math.sqrt(120 / Math.max(1, view.cells.length)) * 1.2);
    const hottest = Math.max(1, ...view.heat.map((row) => Math.max(...row)));
    const thick = Math.min(12, this.rowHigh() * 0.5);
    for (const [a, b, bin, count, took, , lost] of view.cells) {
      if ((a >= lanes && b >= lanes) || a === b) continue;
      const start = view.from_s + (bin + 0.5) * step;
      const x1 = this.x(start);
      const x2 = this.x(start + took);
      if (x2 < this.left - 4 || x1 > this.canvas.clientWidth) continue;
      const share = Math.log1p(count) / Math.log1p(most);
      pen.strokeStyle = lost > count / 2 ? p.bad : p.part;
      pen.globalAlpha = Math.max(0.02, (0.06 + 0.5 * share * share) * light);
      pen.lineWidth = 0.6 + 2.4 * share;
      pen.beginPath(); pen.moveTo(x1, this.y(a)); pen.lineTo(x2, this.y(b)); pen.stroke();
    }
    // How busy each line is, as bars on it: also what is said inside one fold.
    const wide = Math.max(1, (step / (this.until - this.from)) * (this.canvas.clientWidth - this.left - RIGHT) - 0.5);
    view.heat.forEach((row, lane) => row.forEach((count, bin) => {
      if (!count) return;
      const share = Math.log1p(count) / Math.log1p(hottest);
      pen.globalAlpha = 0.25 + 0.6 * share;
      pen.fillStyle = p.part;
      const tall = Math.max(1.5, thick * share);
      pen.fillRect(this.x(view.from_s + bin * step), this.y(lane) - tall / 2, wide, tall);
    }));
    pen.globalAlpha = 1;
  }

  marks(pen, p) {
    const emits = this.view.marks.filter((mark) => mark[0] === 'emit' && mark[4] >= 0 && this.x(mark[2]) > this.left - 6 && this.x(mark[2]) < this.canvas.clientWidth);
    const taken = [];
    pen.textAlign = 'left';
    pen.font = `11px ${p.sans}`;
    for (const [, name, start, , lane, , told] of emits) {
      const x = this.x(start);
      const y = this.y(lane);
      const big = DECIDED.some((word) => name.includes(word));
      pen.fillStyle = big ? p.good : p.ink;
      pen.strokeStyle = p.paper;
      pen.lineWidth = 1.2;
      const r = big ? 6 : 4;
      pen.beginPath(); pen.moveTo(x, y - r); pen.lineTo(x + r, y); pen.lineTo(x, y + r); pen.lineTo(x - r, y); pen.closePath(); pen.fill(); pen.stroke();
      if (big && emits.length < 60) {
        const text = shorten(told || name, 24);
        const wide = pen.measureText(text).width;
        if (!taken.some(([a, b, w]) => x < a + w + 8 && x + wide + 8 > a && Math.abs(b - y) < 12)) {
          taken.push([x, y, wide]);
          pen.fillStyle = p.paper; pen.globalAlpha = 0.8; pen.fillRect(x + 7, y - 15, wide + 4, 13); pen.globalAlpha = 1;
          pen.fillStyle = p.good;
          pen.fillText(text, x + 9, y - 9);
        }
      }
    }
    for (const [kind, , start, stop, lane] of this.view.marks) {
      if (kind !== 'down' || lane < 0) continue;
      pen.strokeStyle = p.bad;
      pen.lineWidth = 2.6;
      cross(pen, this.x(start), this.y(lane), 6);
      if (stop < this.end - 1e-9) {
        const x = this.x(stop);
        const y = this.y(lane);
        pen.fillStyle = p.good;
        pen.beginPath(); pen.moveTo(x - 4, y - 6); pen.lineTo(x + 7, y); pen.lineTo(x - 4, y + 6); pen.closePath(); pen.fill();
      }
    }
  }

  now(pen, p, high) {
    if (this.cursor === null) return;
    const x = this.x(this.cursor);
    if (x < this.left - 1) return;
    pen.strokeStyle = p.brass;
    pen.fillStyle = p.brass;
    pen.lineWidth = 1.6;
    pen.beginPath(); pen.moveTo(x, 18); pen.lineTo(x, high - FOOT); pen.stroke();
    pen.beginPath(); pen.moveTo(x - 6, 15); pen.lineTo(x + 6, 15); pen.lineTo(x, 24); pen.closePath(); pen.fill();
  }
}

const NETWORK = { Partition: 'the network is parted', Drop: 'messages are lost', Clog: 'messages are late' };

// How much room the names at the left need.
export function leftOf(lanes, says) {
  const pen = document.createElement('canvas').getContext('2d');
  pen.font = `600 12px ${palette().sans}`;
  const wide = lanes.map((lane) => Math.max(pen.measureText(shorten(lane.name, 28)).width, says ? pen.measureText(shorten(says(lane) || '', 24)).width : 0));
  return Math.round(Math.min(230, Math.max(92, ...wide) + 26));
}

export const digits = (seconds) => String(Number(seconds.toFixed(9)));

function distance(x, y, x1, y1, x2, y2) {
  const dx = x2 - x1;
  const dy = y2 - y1;
  const along = dx || dy ? Math.max(0, Math.min(1, ((x - x1) * dx + (y - y1) * dy) / (dx * dx + dy * dy))) : 0;
  return Math.hypot(x - x1 - along * dx, y - y1 - along * dy);
}

function sign(mark, text, kind) {
  return h('li', {}, h('span', { class: `sign ${kind || ''}`, 'aria-hidden': 'true' }, mark), text);
}

function line(colour, dashed) {
  return h('svg', { width: 22, height: 10, viewBox: '0 0 22 10' }, h('line', { x1: 0, y1: 5, x2: 16, y2: 5, stroke: colour, 'stroke-width': 2.2, 'stroke-dasharray': dashed ? '5 3' : null }),
    h('path', { d: 'M22 5L14 1.5V8.5Z', fill: colour }));
}
