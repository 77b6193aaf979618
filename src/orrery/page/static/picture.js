// A small picture of one claim: what was published, what was found with its interval, and what is
// left when the mechanism is switched off, on one axis.

import { h, number, interval, quantity, tone } from './kit.js';

const HEIGHT = 66;
const PAD = 8;

// Ratios that span more than a decade are drawn in powers, all else plainly.
const short = (text) => (text.length > 30 ? `${text.slice(0, 29)}…` : text);

function scaleOf(values, WIDTH) {
  const lo = Math.min(...values);
  const hi = Math.max(...values);
  if (lo > 0 && hi / lo > 12) {
    const a = Math.log(lo) - 0.12;
    const b = Math.log(hi) + 0.12;
    return { at: (v) => PAD + ((Math.log(v) - a) / (b - a)) * (WIDTH - 2 * PAD), powers: true };
  }
  const span = hi - lo || Math.abs(hi) || 1;
  const a = lo - 0.08 * span;
  const b = hi + 0.08 * span;
  return { at: (v) => PAD + ((v - a) / (b - a)) * (WIDTH - 2 * PAD), powers: false };
}


export function claimPicture(claim, WIDTH = 340) {
  // A text near an edge is moved in, so that all of it can be read.
  const label = (x, y, text, name) => {
    const half = text.length * 3.1;
    const inside = Math.max(half, Math.min(WIDTH - half, x));
    return h('text', { x: inside, y, 'text-anchor': 'middle', class: name }, text);
  };
  const ratio = claim.form === 'ratio' || claim.form === 'direction';
  const known = [claim.says_lo, claim.says_hi, claim.measured, claim.lo, claim.hi, claim.off, ratio
    ? 1 : null]
    .filter((v) => typeof v === 'number' && Number.isFinite(v));
  if (typeof claim.measured !== 'number' || known.length < 2) return null;
  const { at, powers } = scaleOf(known, WIDTH);
  const mid = 33;
  const said = claim.says_lo !== null ? `published ${claim.says || number(claim.says_lo)}` : `published ${claim.says}`;
  const told = `${said}; found ${number(claim.measured)}${claim.lo !== null ? ` ${interval(claim.lo, claim.hi)}` : ''}`
    + `${claim.off !== null ? `; mechanism off ${number(claim.off)}` : ''}; verdict: ${claim.verdict || 'not yet'}`;
  const kind = tone(claim.verdict);
  const sign = ratio ? '×' : '';
  const parts = [h('line', { x1: PAD, x2: WIDTH - PAD, y1: mid, y2: mid, class: 'axis' })];
  if (ratio) {
    parts.push(h('line', { x1: at(1), x2: at(1), y1: mid - 13, y2: mid + 13, class: 'zero' }));
    if (claim.off === null || Math.abs(at(claim.off) - at(1)) > 66) parts.push(label(at(1),
      mid + 27, '1×'));
  }
  if (claim.lo !== null && claim.hi !== null) {
    parts.push(h('line', { x1: at(claim.lo), x2: at(claim.hi), y1: mid, y2: mid,
      class: `whisker ${kind}` }));
    for (const end of [claim.lo, claim.hi]) parts.push(h('line',
      { x1: at(end), x2: at(end), y1: mid - 4, y2: mid + 4, class: `whisker ${kind}` }));
  }
  if (claim.says_lo !== null) {
    const a = at(claim.says_lo);
    const b = at(claim.says_hi);
    if (b - a > 3) parts.push(h('line', { x1: a, x2: b, y1: mid - 9, y2: mid - 9,
      class: 'saidline' }));
    for (const x of b - a > 3 ? [a, b] : [a]) parts.push(h('path',
      { d: `M${x} ${mid - 4}l-4.5 -9h9z`, class: 'said' }));
    parts.push(label((a + b) / 2, 12, claim.says ? short(claim.says) : number(claim.says_lo),
      'said'));
  }
  if (claim.off !== null) {
    parts.push(h('circle', { cx: at(claim.off), cy: mid, r: 4.5, class: 'offmark' }));
    if (Math.abs(at(claim.off) - at(claim.measured)) > 62) parts.push(label(at(claim.off), mid + 27,
      `off ${number(claim.off)}${sign}`));
  }
  parts.push(h('circle', { cx: at(claim.measured), cy: mid, r: 4.5, class: kind }));
  parts.push(label(at(claim.measured), mid + 27, `${number(claim.measured)}${sign}`, 'ink'));
  return h('svg', { class: 'pic', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT,
    role: 'img', 'aria-label': told },
    h('title', {}, told + (powers ? ' (axis in powers)' : '')), parts);
}

// Systems below each other on one axis: the mean of each, and its interval.
export function rankPicture(rows) {
  const known = rows.filter((row) => typeof row.mean === 'number');
  if (known.length < 2) return null;
  const left = 10 + 7.2 * Math.max(...known.map((row) => row.name.length));
  const right = 84;
  const width = 720;
  const { at, powers } = scaleOf(known.flatMap((row) =>
    [row.mean, row.lo ?? row.mean, row.hi ?? row.mean]), width - left - right);
  const x = (value) => left + at(value);
  const height = known.length * 24 + 8;
  const told = known.map((row) => `${row.name} ${quantity(row.mean, row.unit)}`)
    .join('; ') + (powers ? ' (axis in powers)' : '');
  return h('svg', { class: 'pic', viewBox: `0 0 ${width} ${height}`, width, height, role: 'img',
    'aria-label': told }, h('title', {}, told),
    known.map((row, i) => {
      const y = 16 + i * 24;
      return [h('text', { x: left - 8, y: y + 4, 'text-anchor': 'end', class: 'ink' }, row.name),
        h('line', { x1: left, x2: width - right, y1: y, y2: y, class: 'axis' }),
        row.lo !== null && row.lo !== undefined && h('line',
          { x1: x(row.lo), x2: x(row.hi), y1: y, y2: y, class: 'whisker part' }),
        h('circle', { cx: x(row.mean), cy: y, r: 4.5, class: 'part' }),
          h('text', { x: width - right + 8, y: y + 4 }, quantity(row.mean, row.unit))];
    }));
}
