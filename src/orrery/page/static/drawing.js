// What the drawn views share: colours of the theme, time axes, gestures, the tip at the pointer.

import { h, fill } from './kit.js';

const LIGHT = ['#1f77b4', '#c4622d', '#2e7d4f', '#8a5aa8', '#a3453f', '#6f7d1c', '#1a8a93', '#7a6a5a'];
const DARK = ['#6db3e8', '#e8a06a', '#77c795', '#c2a0dd', '#ea9089', '#c3cf6a', '#6cccd3', '#b8a999'];

// The style sheet of the drawn views, added once.
export function sheet() {
  if (document.getElementById('drawn')) return;
  document.head.append(h('link', { rel: 'stylesheet', href: '/static/playground.css', id: 'drawn' }));
}

export function palette() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  const found = {};
  for (const name of ['paper', 'card', 'ink', 'soft', 'line', 'tint', 'link', 'brass', 'good', 'part', 'bad', 'open',
    'good-tint', 'part-tint', 'bad-tint', 'open-tint']) found[name.replace('-t', 'T')] = read(name);
  found.series = matchMedia('(prefers-color-scheme: dark)').matches ? DARK : LIGHT;
  found.sans = style.getPropertyValue('--sans');
  return found;
}

// Colours by name that stay the same while one looks: the first eight names get their own.
export class Colours {
  constructor() { this.known = new Map(); }

  of(name, series) {
    if (!this.known.has(name)) this.known.set(name, this.known.size);
    return series[Math.min(this.known.get(name), series.length - 1)];
  }
}

// -- time

const UNITS = [[1, 's'], [1e-3, 'ms'], [1e-6, 'µs'], [1e-9, 'ns']];

// A time with as many digits as a scale needs: two instants `step` apart look different.
export function time(seconds, step) {
  const size = Math.abs(seconds) || step || 1;
  const [unit, name] = (step !== undefined && size < 1 ? UNITS.find(([u]) => size >= u * 0.9999) : null)
    || (size >= 1 ? UNITS[0] : UNITS.find(([u]) => size >= u * 0.9999)) || UNITS[3];
  const digits = step ? Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9)) : 3;
  let text = (seconds / unit).toFixed(Math.min(digits, 9));
  if (!step && text.includes('.')) text = text.replace(/\.?0+$/, '');
  return `${text} ${name}`;
}

export function ticks(from, until, wide) {
  const span = Math.max(until - from, 1e-9);
  const rough = span / Math.max(2, wide / 110);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) || power * 10;
  const found = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= until + step * 1e-6; i += 1) found.push(i * step);
  return { step, at: found };
}

// -- canvas

// Fits a canvas to its place in real pixels; gives its context and its size.
export function fit(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const wide = canvas.clientWidth;
  const high = canvas.clientHeight;
  if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(high * ratio)) {
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(high * ratio);
  }
  const pen = canvas.getContext('2d');
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, wide, high);
  return { pen, wide, high };
}

export function arrowHead(pen, x, y, angle, size) {
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(x - size * Math.cos(angle - 0.42), y - size * Math.sin(angle - 0.42));
  pen.lineTo(x - size * Math.cos(angle + 0.42), y - size * Math.sin(angle + 0.42));
  pen.closePath();
  pen.fill();
}

export function cross(pen, x, y, r) {
  pen.beginPath();
  pen.moveTo(x - r, y - r); pen.lineTo(x + r, y + r);
  pen.moveTo(x + r, y - r); pen.lineTo(x - r, y + r);
  pen.stroke();
}

export function hatch(pen, x, y, wide, high, colour) {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, wide, high);
  pen.clip();
  pen.strokeStyle = colour;
  pen.lineWidth = 1;
  pen.beginPath();
  for (let at = x - high - ((x - high) % 7); at < x + wide; at += 7) { pen.moveTo(at, y + high); pen.lineTo(at + high, y); }
  pen.stroke();
  pen.restore();
}

export const shorten = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// Small pictures for buttons, as few fonts have these signs.
const ICONS = {
  rewind: 'M3 2v12M14 2L6 8l8 6z', back: 'M12 2L4 8l8 6z', play: 'M4 2l10 6-10 6z', next: 'M4 2l8 6-8 6z', pause: 'M5 2v12M11 2v12',
};

export function icon(name) {
  return h('svg', { width: 15, height: 15, viewBox: '0 0 16 16', class: 'icon', 'aria-hidden': 'true' }, h('path', { d: ICONS[name] }));
}

// -- hands

// Drag, wheel and pinch on an element:
//   pan(dx, dy, event), zoom(factor, x, y), tap(x, y, event), hover(x, y) or hover(null), drop()
//   grab(x, y) may give a handler of its own for a drag that begins there: {move(x, y), end(x, y)}
export function gestures(element, hands, signal) {
  const down = new Map();
  let moved = 0;
  let own = null;
  let apart = 0;
  const at = (event) => {
    const box = element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const listen = (name, act, options) => element.addEventListener(name, act, { signal, ...options });
  listen('pointerdown', (event) => {
    if (event.button > 0) return;
    const [x, y] = at(event);
    down.set(event.pointerId, [x, y]);
    if (down.size === 1) { moved = 0; own = hands.grab?.(x, y, event) || null; }
    if (down.size === 2) { const [a, b] = [...down.values()]; apart = Math.hypot(a[0] - b[0], a[1] - b[1]); own = null; }
    element.setPointerCapture(event.pointerId);
  });
  listen('pointermove', (event) => {
    const [x, y] = at(event);
    const before = down.get(event.pointerId);
    if (!before) { hands.hover?.(x, y, event); return; }
    down.set(event.pointerId, [x, y]);
    if (down.size === 2) {
      const [a, b] = [...down.values()];
      const now = Math.hypot(a[0] - b[0], a[1] - b[1]);
      if (apart > 0 && now > 0) hands.zoom?.(apart / now, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
      apart = now;
      moved = 99;
      return;
    }
    moved += Math.abs(x - before[0]) + Math.abs(y - before[1]);
    if (own) { own.move?.(x, y); return; }
    if (moved > 4) hands.pan?.(x - before[0], y - before[1], event);
  });
  const up = (event) => {
    if (!down.has(event.pointerId)) return;
    const [x, y] = at(event);
    down.delete(event.pointerId);
    if (own && moved > 4) own.end?.(x, y);
    else if (moved <= 4 && event.type === 'pointerup') hands.tap?.(x, y, event);
    if (down.size === 0) { own = null; hands.drop?.(); }
  };
  listen('pointerup', up);
  listen('pointercancel', up);
  listen('pointerleave', () => { if (!down.size) hands.hover?.(null); });
  if (hands.zoom) {
    listen('wheel', (event) => {
      const [x, y] = at(event);
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        hands.pan?.(-(event.deltaX || event.deltaY), 0, event);
        return;
      }
      event.preventDefault();
      const by = event.deltaMode === 1 ? event.deltaY * 16 : event.deltaY;
      hands.zoom(Math.exp(Math.max(-300, Math.min(300, by)) * 0.0022), x, y);
    }, { passive: false });
  }
}

// A small card at the pointer, inside a positioned element.
export class Tip {
  constructor(parent) {
    this.parent = parent;
    this.element = h('div', { class: 'tip', hidden: true, role: 'tooltip' });
    parent.append(this.element);
  }

  show(x, y, lines) {
    fill(this.element, lines.filter(Boolean).map((line, i) => h('div', { class: i ? 'soft' : 'first' }, line)));
    this.element.hidden = false;
    const wide = this.parent.clientWidth;
    const own = this.element.offsetWidth;
    const high = this.element.offsetHeight;
    this.element.style.setProperty('left', `${Math.max(4, Math.min(x + 14, wide - own - 4))}px`);
    this.element.style.setProperty('top', `${y > high + 24 ? y - high - 12 : y + 18}px`);
  }

  hide() { this.element.hidden = true; }
}

// Asks the server for what is looked at now; of several wishes only the newest is asked for.
export class Latest {
  constructor(signal) { this.signal = signal; this.busy = false; this.next = null; }

  ask(make, then, failed) {
    if (this.busy) { this.next = [make, then, failed]; return; }
    this.busy = true;
    make().then((found) => { if (!this.signal.aborted) then(found); })
      .catch((failure) => { if (!this.signal.aborted && failure.name !== 'AbortError') failed?.(failure); })
      .finally(() => {
        this.busy = false;
        const next = this.next;
        this.next = null;
        if (next && !this.signal.aborted) this.ask(...next);
      });
  }
}
