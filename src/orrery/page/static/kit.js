// What every view uses: elements, calls to the server, numbers, badges, tables.
// All text goes into the page as text; nothing here reads data as HTML.

const SVG = 'http://www.w3.org/2000/svg';
const SVG_TAGS = new Set(['svg', 'g', 'path', 'line', 'rect', 'circle', 'text', 'title', 'polyline',
  'polygon', 'desc']);

// h('p', {class: 'x', onclick: f, style: {left: '3px'}}, 'text', node, [nodes]) makes an element.
// Attributes that are null, undefined or false are left out; children likewise.
export function h(tag, attributes, ...children) {
  const svg = SVG_TAGS.has(tag);
  const element = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'style') for (const [key,
      v] of Object.entries(value)) element.style.setProperty(key, v);
    else if (name === 'value' || name === 'checked' || name === 'disabled') element[name] = value;
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  return add(element, children);
}

export function add(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren();
  return add(element, children);
}

// -- the server

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function call(path, options) {
  let answer;
  try {
    answer = await fetch(path, { credentials: 'same-origin', redirect: 'error', ...options });
  } catch (failure) {
    if (failure.name === 'AbortError') throw failure;
    throw new Refused(0,
      'The page’s server does not answer. Was it ended? Start it again: orrery page');
  }
  const data = answer.headers.get(
    'content-type') === 'application/json' ? await answer.json() : null;
  if (!answer.ok) {
    if (answer.status === 401) window.dispatchEvent(new Event('orrery-closed'));
    throw new Refused(answer.status, (data && data.error && data.error.message)
      || `The answer was ${answer.status}.`);
  }
  return data;
}

export const get = (path, signal) => call(path, { signal });

// The key of the session is kept where only this origin, port and all, can read it.
const KEY = 'orrery-key';

export const post = (path, body, signal) => call(path, {
  method: 'POST', signal, body: JSON.stringify(body),
  headers: { 'Content-Type': 'application/json', 'X-Orrery-Key': localStorage.getItem(KEY) || '' },
});

export async function unlock(token) {
  const { key } = await post('/api/session', { token });
  localStorage.setItem(KEY, key);
}

// -- numbers and words

// A figure in at most four digits, with a real minus sign.
export function number(value, digits = 4) {
  if (value === null || value === undefined) return '–';
  if (typeof value !== 'number') return String(value);
  if (!Number.isFinite(value)) return '–';
  const size = Math.abs(value);
  let text;
  if (Number.isInteger(value) && size < 1e6) text = value.toLocaleString('en-GB')
    .replaceAll(',', '\u202f');
  else if (size !== 0 && (size >= 1e6 || size < 1e-3)) text = value.toExponential(digits - 2)
    .replace('e+', 'e');
  else text = String(Number(value.toPrecision(digits)));
  return text.replace('-', '−');
}

// The interval of a figure, in fewer digits than the figure.
export function interval(lo, hi) {
  if (typeof lo !== 'number' || typeof hi !== 'number' || lo === hi) return '';
  return `[${number(lo, 3)}, ${number(hi, 3)}]`;
}

const TIMES = [[1, 's'], [1e-3, 'ms'], [1e-6, 'µs'], [1e-9, 'ns']];
const SIZES = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k'], [1, '']];

// The step in which a figure of a unit is written: 0.0021 s is 2.1 ms, 66200 B is 66.2 kB.
function stepOf(value, unit) {
  const size = Math.abs(value);
  if (unit === 's' && size > 0 && size < 1) return TIMES.find(([step]) => size >= step) || TIMES[3];
  if (unit === 'B' || unit === 'B/s' || unit === 'Bps') {
    const [step, name] = SIZES.find(([least]) => size >= least) || SIZES[4];
    return [step, name + (unit === 'B' ? 'B' : 'B/s')];
  }
  return [1, unit || ''];
}

// A figure with its unit: seconds and bytes in the step that fits.
export function quantity(value, unit) {
  if (typeof value !== 'number' || !Number.isFinite(value)) return number(value);
  const [step, name] = stepOf(value, unit);
  return name ? `${number(value / step)} ${name}` : number(value);
}

// The interval of a quantity, in the step of its mean.
export function spread(mean, lo, hi, unit) {
  const [step] = stepOf(mean, unit);
  return interval(lo / step, hi / step);
}

export function duration(seconds) {
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const TONES = {
  'holds': 'good', 'checked': 'good', 'met': 'good', 'passed': 'good', 'done': 'good',
  'not here': 'bad', 'unmet': 'bad', 'gain not from the mechanism': 'bad', 'failed': 'bad',
  'holds in part': 'part', 'inconclusive': 'open', 'working': 'part', 'running': 'part',
  'impossible-here': 'open', 'queued': 'open',
};
const MARKS = { good: '●', part: '◐', bad: '○', open: '◌', quiet: '·' };

export const tone = (word) => TONES[word] || 'quiet';

// A verdict, state or status: colour, mark and word together, so that no one has to see colours.
export function badge(word, missing = 'not yet') {
  const kind = tone(word);
  return h('span', { class: `badge ${kind}` }, h('span', { 'aria-hidden': 'true', class: 'dot' },
    MARKS[kind]), word || missing);
}

// -- text from the server: runs [["t", words], ["c", code]] and blocks

export function runs(list) {
  return list.map(([kind, words]) => {
    if (kind === 'c') return h('code', {}, words);
    return kind === 'b' ? h('strong', {}, words) : words;
  });
}

export function blocks(list) {
  return list.map((block) => {
    if (block.kind === 'code') return h('pre', {}, h('code', {}, block.text));
    if (block.kind === 'list') return h('ul', {}, block.items.map((item) =>
      h('li', {}, runs(item))));
    if (block.kind === 'terms') {
      return h('dl', { class: 'facts' }, block.items.map(([name, said]) =>
        [h('dt', {}, h('code', {}, name)), h('dd', {}, runs(said))]));
    }
    return h('p', {}, runs(block.runs));
  });
}

// -- larger pieces

export const shortId = (id) => id.slice(0, 8);

// A table that becomes a list of cards on a phone: each cell knows the head that it stands under.
// heads: ['system', {text: 'measured', right: true}]; rows: arrays of cells (nodes or text).
export function table(heads, rows, options = {}) {
  const named = heads.map((head) => (typeof head === 'string' ? { text: head } : head));
  const body = rows.map((row) => {
    const cells = row.cells || row;
    return h('tr', { class: row.class }, cells.map((cell, i) => {
      const none = cell === '' || cell === null || cell === undefined;
      const names = [named[i].right && 'right', named[i].class, none && 'none'].filter(Boolean)
        .join(' ');
      return h('td', { 'data-head': named[i].text, class: names || null }, h('div', {}, cell));
    }));
  });
  return h('div', { class: options.scroll ? 'scroll' : null, tabindex: options.scroll ? '0' : null,
    role: options.scroll ? 'region' : null, 'aria-label': options.scroll ? options.label : null },
    h('table', { class: options.class || 'cards', 'aria-label': options.label },
      h('thead', {}, h('tr', {}, named.map((head) => h('th',
        { scope: 'col', class: head.right ? 'right' : null }, head.text)))),
      h('tbody', {}, body)));
}

export const empty = (text, ...more) => h('p', { class: 'empty' }, text, more);

export function field(label, control, hint) {
  const id = control.id || `f${field.count += 1}`;
  control.id = id;
  if (hint) control.setAttribute('aria-describedby', `${id}-hint`);
  return h('div', { class: 'field' }, h('label', { for: id }, label), control,
    hint && h('small', { id: `${id}-hint` }, hint));
}
field.count = 0;

export function select(options, value, attributes = {}) {
  const element = h('select', attributes, options.map((each) => {
    const [name, text] = Array.isArray(each) ? each : [each, each];
    return h('option', { value: name }, text);
  }));
  element.value = value;
  return element;
}

// A sentence at the foot of the window, read out by screen readers, gone after a while.
export function note(text, bad = false) {
  const place = document.getElementById('notes');
  const element = h('p', { class: bad ? 'note bad' : 'note' }, text);
  place.append(element);
  setTimeout(() => element.remove(), bad ? 9000 : 5000);
}

export const go = (address) => { window.location.hash = address; };
