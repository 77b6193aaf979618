// The stage of the playground: the nodes in a ring with the messages that fly between them. A click
// on a node or a link opens its menu; a drag from node to node cuts their link. A world too large
// for a ring is a field of small squares.

import { h, fill } from './kit.js';
import { Tip, fit, gestures, palette, shorten, time } from './drawing.js';

const WIDE = 860;
const HIGH = 452;
const MOST_IN_RING = 36;
const MOST_LINKS = 14;
const MOST_FLYING = 160;
const MOST_NAMED = 14;

export class Stage {
  // options: onNode(node, x, y), onLink(a, b, x, y), onCut(a, b), signal, colours, size
  constructor(options) {
    this.options = options;
    this.size = options.size;
    this.ring = this.size <= MOST_IN_RING;
    this.scene = null;
    this.flying = [];
    this.at = 0;
    this.element = h('div', { class: 'stage' });
    this.tip = new Tip(this.element);
    if (this.ring) this.buildRing();
    else this.buildField();
  }

  // -- a ring of nodes

  place(node) {
    if (node >= this.size) return [WIDE / 2, HIGH / 2 + (this.size > MOST_NAMED ? 0 : 4)];
    const angle = (node / this.size) * 2 * Math.PI - Math.PI / 2;
    const r = this.size === 1 ? 0 : this.size > MOST_NAMED ? 190 : 148;
    return [WIDE / 2 + r * 1.6 * Math.cos(angle), HIGH / 2 + (this.size > MOST_NAMED ? 0 : 4) + r * Math.sin(angle)];
  }

  radius() { return this.size <= 8 ? 33 : this.size <= 14 ? 26 : this.size <= 24 ? 19 : 14; }

  buildRing() {
    this.links = h('g', {});
    this.trails = h('g', {});
    this.dots = h('g', { 'aria-hidden': 'true' });
    this.nodes = h('g', {});
    this.rope = h('line', { class: 'rope', visibility: 'hidden' });
    this.svg = h('svg', { viewBox: `0 0 ${WIDE} ${HIGH}`, class: 'ring', role: 'group', 'aria-label': 'The nodes. Choose one to crash, pause, slow or cut it off.' },
      this.links, this.trails, this.rope, this.nodes, this.dots);
    this.element.prepend(this.svg);
    gestures(this.svg, { grab: (x, y) => this.grab(x, y), tap: (x, y, event) => this.tap(x, y, event) }, this.options.signal);
  }

  toView(x, y) {
    const box = this.svg.getBoundingClientRect();
    const scale = Math.min(box.width / WIDE, box.height / HIGH) || 1;
    return [(x - (box.width - WIDE * scale) / 2) / scale, (y - (box.height - HIGH * scale) / 2) / scale];
  }

  nodeAt(x, y, room = 8) {
    for (let node = 0; node < this.size; node += 1) {
      const [a, b] = this.place(node);
      if (Math.hypot(x - a, y - b) <= this.radius() + room) return node;
    }
    return null;
  }

  grab(x, y) {
    const from = this.nodeAt(...this.toView(x, y));
    if (from === null) return null;
    const [x1, y1] = this.place(from);
    return {
      move: (to, high) => {
        const [x2, y2] = this.toView(to, high);
        for (const [name, value] of Object.entries({ x1, y1, x2, y2, visibility: 'visible' })) this.rope.setAttribute(name, value);
        const over = this.nodeAt(x2, y2);
        this.rope.classList.toggle('there', over !== null && over !== from);
      },
      end: (to, high) => {
        this.rope.setAttribute('visibility', 'hidden');
        const over = this.nodeAt(...this.toView(to, high));
        if (over !== null && over !== from) this.options.onCut(from, over);
      },
    };
  }

  tap(x, y) {
    const [a, b] = this.toView(x, y);
    const node = this.nodeAt(a, b, 4);
    if (node !== null) { this.options.onNode(node, x, y); return; }
    const link = this.linkAt(a, b);
    if (link) this.options.onLink(link[0], link[1], x, y);
  }

  linkAt(x, y) {
    let best = 9;
    let found = null;
    for (const [a, b] of this.pairs()) {
      const [x1, y1] = this.place(a);
      const [x2, y2] = this.place(b);
      const along = Math.max(0, Math.min(1, ((x - x1) * (x2 - x1) + (y - y1) * (y2 - y1)) / ((x2 - x1) ** 2 + (y2 - y1) ** 2)));
      const off = Math.hypot(x - x1 - along * (x2 - x1), y - y1 - along * (y2 - y1));
      if (off < best) { best = off; found = [a, b]; }
    }
    return found;
  }

  pairs() {
    if (this.size > MOST_LINKS) return (this.scene?.links || []).map((link) => [link.a, link.b]);
    const found = [];
    for (let a = 0; a < this.size; a += 1) for (let b = a + 1; b < this.size; b += 1) found.push([a, b]);
    return found;
  }

  show(scene) {
    this.scene = scene;
    if (!this.ring) { this.drawField(); return; }
    this.drawLinks();
    this.drawNodes();
  }

  // Elements are made anew only when they would look different, so that none goes from under a hand.
  same(what, told) {
    const key = JSON.stringify(told);
    this.drawn = this.drawn || {};
    if (this.drawn[what] === key) return true;
    this.drawn[what] = key;
    return false;
  }

  drawLinks() {
    if (this.same('links', this.scene.links)) return;
    const state = new Map(this.scene.links.map((link) => [`${link.a}-${link.b}`, link.kind]));
    fill(this.links, this.pairs().map(([a, b]) => {
      const [x1, y1] = this.place(a);
      const [x2, y2] = this.place(b);
      const kind = state.get(`${a}-${b}`) || state.get(`${b}-${a}`) || 'whole';
      const middle = [(x1 + x2) / 2, (y1 + y2) / 2];
      const reach = Math.hypot(x2 - x1, y2 - y1) || 1;
      const across = [-(y2 - y1) / reach, (x2 - x1) / reach];
      return h('g', { class: `link ${kind}` }, h('line', { x1, y1, x2, y2 }),
        kind === 'cut' && h('path', { class: 'gap', d: `M${middle[0] - across[0] * 9 - 3} ${middle[1] - across[1] * 9}L${middle[0] + across[0] * 9 - 3} ${middle[1] + across[1] * 9}M${middle[0] - across[0] * 9 + 3} ${middle[1] - across[1] * 9}L${middle[0] + across[0] * 9 + 3} ${middle[1] + across[1] * 9}` }),
        h('title', {}, `the link ${a} – ${b}${kind === 'whole' ? '' : ` is ${kind}`}`));
    }));
  }

  drawNodes() {
    if (this.same('nodes', [this.options.picked?.(), this.scene.nodes.map(({ told, ...rest }) => rest)])) return;
    const rare = this.rarest();
    const r = this.radius();
    const chosen = this.svg.contains(document.activeElement) ? document.activeElement.dataset.node : null;
    const made = this.scene.nodes.map((node) => {
      const [x, y] = this.place(node.id);
      const kinds = ['node', node.state, node.is !== undefined && node.is === rare && 'rare', node.alone && 'alone', node.slow && 'slow', node.lies && 'lies', this.options.picked?.() === node.id && 'picked'];
      const told = this.says(node);
      const side = y < HIGH / 2 - 90 ? -1 : 1;
      const under = y + (side > 0 ? r + 19 : told[1] ? -r - 25 : -r - 11);
      return h('g', { class: kinds.filter(Boolean).join(' '), tabindex: '0', role: 'button', 'data-node': node.id, 'aria-label': `node ${node.id}, ${told.join(', ')}`,
        onkeydown: (event) => { if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); const box = event.currentTarget.getBoundingClientRect(); const base = this.element.getBoundingClientRect(); this.options.onNode(node.id, box.left - base.left + box.width / 2, box.top - base.top + box.height / 2); } } },
      h('circle', { cx: x, cy: y, r: r + 5, class: 'halo' }), h('circle', { cx: x, cy: y, r, class: 'body' }),
      h('text', { x, y: y + (r > 20 ? 5.5 : 4), class: 'id' }, node.id),
      node.state === 'down' && h('path', { class: 'x', d: `M${x - r * 0.62} ${y - r * 0.62}L${x + r * 0.62} ${y + r * 0.62}M${x + r * 0.62} ${y - r * 0.62}L${x - r * 0.62} ${y + r * 0.62}` }),
      node.state === 'paused' && h('path', { class: 'bars', d: `M${x - 9} ${y + r * 0.42}v${r * 0.4}M${x + 9} ${y + r * 0.42}v${r * 0.4}` }),
      this.size <= MOST_NAMED && h('text', { x, y: under, class: 'is' }, shorten(told[0], 16)),
      this.size <= MOST_NAMED && told[1] && h('text', { x, y: under + 15, class: 'in' }, shorten(told[1], 20)));
    });
    const [x, y] = this.place(this.size);
    made.push(h('g', { class: 'clients' }, h('rect', { x: x - 36, y: y - 17, width: 72, height: 34, rx: 10 }), h('text', { x, y: y + 4.5 }, 'clients')));
    fill(this.nodes, made);
    if (chosen !== null && chosen !== undefined) this.nodes.querySelector(`[data-node="${chosen}"]`)?.focus();
  }

  says(node) {
    if (node.state === 'down') return ['down'];
    const told = [];
    if (node.state === 'paused') told.push('stands still');
    if (node.slow) told.push(`${node.slow}× slow`);
    if (node.alone) told.push('cut off');
    if (node.lies) told.push('lies');
    if (node.is) told.push(node.is);
    if (node.in) told.push(node.in);
    return told.length ? told : ['up'];
  }

  // The word that only one node says of itself, such as leader: that node stands out.
  rarest() {
    const count = new Map();
    for (const node of this.scene.nodes) if (node.is && node.state !== 'down') count.set(node.is, (count.get(node.is) || 0) + 1);
    if (count.size < 2) return null;
    const [word, times] = [...count].sort((a, b) => a[1] - b[1])[0];
    return times === 1 ? word : null;
  }

  // From the rim of one node to the rim of the other.
  way(src, dst) {
    const [a, b] = this.place(src);
    const [c, d] = this.place(dst);
    const reach = Math.hypot(c - a, d - b) || 1;
    const off = (node) => (node >= this.size ? 22 : this.radius() + 3) / reach;
    return [a + (c - a) * off(src), b + (d - b) * off(src), c - (c - a) * off(dst), d - (d - b) * off(dst)];
  }

  // -- messages on their way: arrows as the diagram has them

  fly(arrows, methods, at, usual) {
    this.at = at;
    if (!this.ring) { this.flyField(arrows, methods, at, usual); return; }
    const p = palette();
    const trail = usual * 5;
    const trails = [];
    const dots = [];
    const named = [];
    for (const [sent, got, , , src, dst, method, , flags] of arrows) {
      if (sent > at || src === dst) continue;
      const lost = flags & 2;
      const stop = lost ? sent + usual : got;
      const age = at - stop;
      if (age > trail) continue;
      const [x1, y1, x2, y2] = this.way(src, dst);
      const colour = this.options.colours.of(methods[method], p.series);
      const share = Math.min(1, (at - sent) / Math.max(stop - sent, 1e-12));
      const reach = lost ? Math.min(share, 0.5) : share;
      const x = x1 + (x2 - x1) * reach;
      const y = y1 + (y2 - y1) * reach;
      const fade = age <= 0 ? 1 : 1 - age / trail;
      if (trails.length < MOST_FLYING) trails.push(h('line', { x1, y1, x2: x, y2: y, stroke: lost ? p.bad : colour, 'stroke-width': 2, 'stroke-opacity': 0.55 * fade, 'stroke-dasharray': flags & 1 ? '5 4' : null }));
      if (age <= 0 && dots.length < MOST_FLYING) {
        if (lost && share > 0.5) dots.push(h('path', { d: `M${x - 5} ${y - 5}L${x + 5} ${y + 5}M${x + 5} ${y - 5}L${x - 5} ${y + 5}`, stroke: p.bad, 'stroke-width': 2.6 }));
        else {
          dots.push(h('circle', { cx: x, cy: y, r: 5.5, fill: colour, stroke: p.card, 'stroke-width': 1.5 }));
          const clear = !named.some(([a, b]) => Math.abs(a - x) < 78 && Math.abs(b - y) < 13);
          if (this.size <= MOST_NAMED && clear) {
            named.push([x, y]);
            // Before half of the way the name goes ahead, later it follows: so it stands on no node.
            const right = (x2 > x1) === (share < 0.5);
            dots.push(h('text', { x: x + (right ? 9 : -9), y: y + 4, class: 'said', fill: colour, 'text-anchor': right ? 'start' : 'end' }, shorten(methods[method], 16)));
          }
        }
      }
    }
    fill(this.trails, trails);
    fill(this.dots, dots);
  }

  // -- a field of squares

  buildField() {
    this.canvas = h('canvas', { class: 'field-of-nodes', tabindex: '0', role: 'img', 'aria-label': `${this.size} nodes as squares; click one` });
    this.element.prepend(this.canvas);
    gestures(this.canvas, {
      tap: (x, y) => { const node = this.squareAt(x, y); if (node !== null) this.options.onNode(node, x, y); },
      hover: (x, y) => this.hoverField(x, y),
      grab: (x, y) => {
        const from = this.squareAt(x, y);
        return from === null ? null : { end: (to, high) => { const over = this.squareAt(to, high); if (over !== null && over !== from) this.options.onCut(from, over); } };
      },
    }, this.options.signal);
    const watch = new ResizeObserver(() => this.drawField());
    watch.observe(this.canvas);
    this.options.signal.addEventListener('abort', () => watch.disconnect());
  }

  grid() {
    const wide = this.canvas.clientWidth;
    const high = 380;
    let cell = Math.min(58, Math.sqrt((wide * high) / this.size));
    while (Math.ceil(this.size / Math.max(1, Math.floor(wide / cell))) * cell > high && cell > 0.5) cell *= 0.97;
    const columns = Math.max(1, Math.min(this.size, Math.floor(wide / cell)));
    return { columns, cell, left: (wide - columns * cell) / 2 };
  }

  squareAt(x, y) {
    const { columns, cell, left } = this.grid();
    const column = Math.floor((x - left) / cell);
    const node = Math.floor(y / cell) * columns + column;
    return column >= 0 && column < columns && node >= 0 && node < this.size ? node : null;
  }

  hoverField(x, y) {
    const node = x === null ? null : this.squareAt(x, y);
    if (node === null) { this.tip.hide(); return; }
    const one = this.scene?.nodes.find((each) => each.id === node);
    this.tip.show(x, y, [`node ${node}`, one ? this.says(one).join(', ') : 'up']);
  }

  drawField() {
    if (!this.scene || !this.canvas.clientWidth) return;
    const { columns, cell, left } = this.grid();
    this.canvas.style.setProperty('height', `${Math.ceil(Math.ceil(this.size / columns) * cell)}px`);
    const { pen } = fit(this.canvas);
    const p = palette();
    const gap = cell > 6 ? 2 : cell > 3 ? 0.6 : 0;
    const odd = new Map(this.scene.nodes.map((node) => [node.id, node]));
    const fresh = new Set(this.flying.filter(([, , , dst, age]) => age > 0).map((each) => each[3]));
    const corner = (node) => [left + (node % columns) * cell, Math.floor(node / columns) * cell];
    pen.textAlign = 'center';
    pen.textBaseline = 'middle';
    pen.font = `${Math.min(13, cell / 3)}px ${p.sans}`;
    for (let node = 0; node < this.size; node += 1) {
      const one = odd.get(node);
      const [x, y] = corner(node);
      pen.fillStyle = !one || one.state === 'up' ? (one && (one.slow || one.alone) ? p.open : p.part) : one.state === 'down' ? p.bad : p.soft;
      pen.globalAlpha = one && (one.state !== 'up' || one.slow || one.alone) ? 0.8 : fresh.has(node) ? 0.62 : 0.22;
      pen.fillRect(x, y, cell - gap, cell - gap);
      pen.globalAlpha = 1;
      if (cell >= 22) { pen.fillStyle = p.ink; pen.fillText(String(node), x + (cell - gap) / 2, y + (cell - gap) / 2); }
    }
    pen.lineWidth = 1.2;
    for (const [name, lost, src, dst, age, share] of this.flying) {
      if (age > 0 || src >= this.size || dst >= this.size) continue;
      const [x1, y1] = corner(src).map((v) => v + cell / 2);
      const [x2, y2] = corner(dst).map((v) => v + cell / 2);
      pen.strokeStyle = lost ? p.bad : this.options.colours.of(name, p.series);
      pen.globalAlpha = 0.5;
      pen.beginPath(); pen.moveTo(x1, y1); pen.lineTo(x1 + (x2 - x1) * share, y1 + (y2 - y1) * share); pen.stroke();
    }
    pen.globalAlpha = 1;
  }

  flyField(arrows, methods, at, usual) {
    this.flying = [];
    for (const [sent, got, , , src, dst, method, , flags] of arrows) {
      const age = at - got;
      if (sent > at || age > usual * 5 || this.flying.length > 3000) continue;
      this.flying.push([methods[method], flags & 2, src, dst, age, Math.min(1, (at - sent) / Math.max(got - sent, 1e-12))]);
    }
    this.drawField();
  }
}

// The strip of time below the stage: how much is said when, where the edits are, where one is.
export class Strip {
  // options: onTime(at), signal
  constructor(options) {
    this.options = options;
    this.end = 1;
    this.at = 0;
    this.edits = [];
    this.heat = [];
    this.window = null;
    this.canvas = h('canvas', { class: 'strip', tabindex: '0', role: 'slider', 'aria-label': 'Time of the run', 'aria-valuemin': '0' });
    this.element = this.canvas;
    const move = (x) => options.onTime(Math.max(0, Math.min(this.end, ((x - 8) / (this.canvas.clientWidth - 16)) * this.end)));
    gestures(this.canvas, { grab: (x) => { move(x); return { move, end: move }; }, tap: (x) => move(x) }, options.signal);
    this.canvas.addEventListener('keydown', (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10 }[event.key];
      if (event.key === 'Home') options.onTime(0);
      else if (event.key === 'End') options.onTime(this.end);
      else if (step) options.onTime(Math.max(0, Math.min(this.end, this.at + (step * this.end) / 100)));
      else return;
      event.preventDefault();
    }, { signal: options.signal });
    const watch = new ResizeObserver(() => this.draw());
    watch.observe(this.canvas);
    options.signal.addEventListener('abort', () => watch.disconnect());
  }

  draw() {
    if (!this.canvas.clientWidth) return;
    const { pen, wide, high } = fit(this.canvas);
    const p = palette();
    const x = (at) => 8 + (at / this.end) * (wide - 16);
    pen.fillStyle = p.tint;
    pen.beginPath(); pen.roundRect(0, 6, wide, high - 12, 7); pen.fill();
    if (this.window) {
      pen.fillStyle = p.line;
      const [from, until] = this.window;
      pen.fillRect(x(from), 6, Math.max(2, x(until) - x(from)), high - 12);
    }
    const most = Math.max(1, ...this.heat);
    pen.fillStyle = p.part;
    this.heat.forEach((count, i) => {
      if (!count) return;
      const tall = Math.max(1.5, (high - 20) * Math.sqrt(count / most));
      pen.globalAlpha = 0.5;
      pen.fillRect(x((i / this.heat.length) * this.end), high - 8 - tall, Math.max(1, (wide - 16) / this.heat.length - 0.6), tall);
    });
    pen.globalAlpha = 1;
    for (const edit of this.edits) {
      pen.fillStyle = edit.ends ? p.good : p.bad;
      const at = x(edit.at_s);
      pen.beginPath(); pen.moveTo(at - 5, 3); pen.lineTo(at + 5, 3); pen.lineTo(at, 11); pen.closePath(); pen.fill();
      pen.globalAlpha = 0.6; pen.fillRect(at - 0.75, 6, 1.5, high - 12); pen.globalAlpha = 1;
    }
    pen.fillStyle = p.brass;
    pen.fillRect(x(this.at) - 1.25, 2, 2.5, high - 4);
    pen.beginPath(); pen.arc(x(this.at), high - 6, 6, 0, 7); pen.fill();
    this.canvas.setAttribute('aria-valuemax', String(this.end));
    this.canvas.setAttribute('aria-valuenow', String(this.at));
    this.canvas.setAttribute('aria-valuetext', time(this.at));
  }
}
