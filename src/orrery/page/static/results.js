// What a finished job found, drawn from the JSON document that its command printed.

import { h, badge, table, number, interval, quantity, spread, empty, shortId } from './kit.js';
import { claimPicture, rankPicture } from './picture.js';

export function result(job) {
  const found = job.result;
  if (!found) return null;
  if (job.kind === 'run') return ranOne(found);
  if (job.kind === 'check') return checked(found);
  if (job.kind === 'compare') return compared(found);
  if (job.kind === 'choose') return chosen(found);
  if (job.kind === 'when') return mapped(found, job);
  return null;
}

function ranOne(found) {
  return [h('p', {}, found.violations.length ? badge('failed') : badge('done'),
    ` ${found.violations.length ? `${found.violations.length} violations` : 'no violations'}; `,
    `${number(found.events)} events, ${quantity(found.seconds, 's')} of its time. `,
      h('a', { href: `#/run/${found.id}` }, `Open run ${shortId(found.id)}`)),
  table([{ text: 'Metric', class: 'plain' }, { text: 'Value', right: true }],
    Object.entries(found.metrics).map(([name, value]) => [name, number(value)]),
    { label: 'Metrics', class: 'fit cards' })];
}

function checked(found) {
  if (!found.claims.length) return empty('It makes no claims.');
  return found.claims.map((each) => {
    const claim = { ...each, date: '' };
    if (claim.says_lo === null) claim.says_lo = claim.says_hi;
    if (claim.says_hi === null) claim.says_hi = claim.says_lo;
    return h('div', { class: 'claim' }, h('div', {}, h('h3', {}, each.metric, each.untestable
      ? badge(null, 'cannot be tested') : badge(each.verdict)),
      h('p', {}, 'Published ', h('strong', {}, each.says || each.form), each.against
        && ` against ${each.against}`, '.'),
      each.measured !== null && h('p', {}, `Found ${number(each.measured)}`, each.lo !== null
        && ` ${interval(each.lo, each.hi)}`,
        each.off !== null && `; mechanism off ${number(each.off)}`, ` over ${each.seeds} seeds, `,
          h('span', { class: 'kind' }, each.kind)),
      each.untestable && h('p', {}, h('small', {}, each.untestable))),
        h('div', {}, claimPicture(claim)));
  });
}

const cell = (m) => (!m ? '' : [quantity(m.mean, m.unit), m.lo !== null && m.hi !== null
  && m.hi !== m.lo && h('span', { class: 'sub' }, spread(m.mean, m.lo, m.hi, m.unit))]);

function compared(found) {
  const rows = found.rows;
  const names = [...new Set(rows.flatMap((row) => Object.keys(row.metrics)))];
  const differ = names.filter((name) => rows.some((row) =>
    JSON.stringify(row.metrics[name]?.mean) !== JSON.stringify(rows[0].metrics[name]?.mean)));
  const kinds = new Set(rows.flatMap((row) => Object.values(row.metrics).map((m) => m.kind)));
  const first = found.by && differ.includes(found.by) ? [found.by,
    ...differ.filter((name) => name !== found.by)] : differ;
  return [h('p', { class: 'soft' },
    `${rows.length} systems; ${differ.length} of ${names.length} metrics differ; every number is ${[...kinds].join(' or ')}.`),
    first.length > 0 && h('figure', {}, h('figcaption', {}, first[0]),
      rankPicture(rows.map((row) => ({ name: row.system, ...row.metrics[first[0]] })))),
    table([{ text: 'System', class: 'plain nowrap' }, ...first.map((text) =>
      ({ text, right: true, class: 'nowrap' }))],
      rows.map((row) => [h('a', { class: 'name', href: `#/systems/${row.system}` }, row.system),
        ...first.map((name) => cell(row.metrics[name]))]),
      { label: 'Comparison', scroll: true, class: 'dense' })];
}

function chosen(found) {
  return [table(['', { text: 'System', class: 'plain' },
    { text: 'Score', right: true, class: 'nowrap' }, 'Why'],
    found.ranking.map((each, i) => [i + 1, h('a', { class: 'name',
      href: `#/systems/${each.system}` }, each.system),
      [number(each.score), each.lo !== null && each.lo !== undefined
        && h('span', { class: 'sub' }, interval(each.lo, each.hi))], each.why]),
        { label: 'Ranking' }),
  h('h3', {}, 'What would change the answer'),
  found.flips.length ? h('ul', {}, found.flips.map((flip) =>
    h('li', {}, `${flip.parameter} at ${number(flip.at)}: ${flip.to} is better`)))
    : h('p', { class: 'soft' }, 'Nothing that was tried.')];
}

function mapped(found, job) {
  const share = found.share;
  const key = found.key;
  return [h('p', {},
    `Holds on ${Math.round(share.holds * 100)} % of the map, does not on ${Math.round(share.does_not * 100)} %, open on ${Math.round(share.open * 100)} %.`),
    key && h('img', { class: 'region', src: `/api/systems/${job.about.system}/maps/${key}`,
      alt: 'The region in which the claim holds' })];
}
