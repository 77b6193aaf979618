// Runs side by side: only what differs; what is the same for all is folded away.

import { h, fill, get, table, quantity, shortId, note, go } from './kit.js';

export async function show(main, { args, signal, title }) {
  title('Side by side');
  const ids = (args[0] || '').split(',').filter(Boolean);
  const found = await get(`/api/side?runs=${encodeURIComponent(ids.join(','))}`, signal);
  const heads = found.runs.map((run) => ({ text: `${run.name}, seed ${run.seed}`, right: true }));
  const differs = found.facts.length + found.metrics.length;
  const drop = (id) => {
    if (ids.length <= 2) note('Two runs are the fewest that can stand side by side.');
    else go(`#/side/${ids.filter((each) => !id.startsWith(each)).join(',')}`);
  };
  fill(main, h('p', { class: 'over' }, h('a', { href: '#/runs' }, 'Runs')),
    h('h1', {}, `${found.runs.length} runs side by side`),
    h('div', { class: 'chips' }, found.runs.map((run) =>
      h('span', { class: 'chip' }, h('a', { href: `#/run/${run.id}`, class: 'mono' },
      shortId(run.id)), run.name, h('button', { type: 'button', class: 'cross',
      'aria-label': `Leave out run ${shortId(run.id)}`, onclick: () => drop(run.id) }, '×')))),
    differs === 0 && h('p', { class: 'lead' }, 'They differ in nothing.'),
    found.facts.length > 0 && [h('h2', {}, 'What was different'),
      table([{ text: 'Setting', class: 'plain' }, ...heads],
      found.facts.map((row) => [row.name, ...row.values.map((v) => v ?? '–')]),
      { label: 'Settings that differ', scroll: true, class: 'dense' })],
    found.metrics.length > 0 && [h('h2', {}, 'What came out differently'),
      table([{ text: 'Metric', class: 'plain' }, ...heads], found.metrics.map((row) => [
      [row.name, row.better && h('span', { class: 'sub' }, `${row.better} is better`)],
      ...row.values.map((v, i) => [spark(row.values, v), v === null ? '–'
        : h(row.best.includes(i) ? 'b' : 'span', { class: row.best.includes(i) ? 'good' : null },
        quantity(v, row.unit), row.best.includes(i) && h('span', { class: 'sr' }, ' (best)'))]),
    ]), { label: 'Metrics that differ', scroll: true, class: 'dense' })],
    (found.same_facts.length > 0 || found.same_metrics.length > 0)
      && h('details', { class: 'same' }, h('summary', {},
      `The same for all: ${found.same_facts.length} settings, ${found.same_metrics.length} metrics`),
      h('dl', { class: 'facts' }, found.same_facts.map((row) =>
        [h('dt', {}, row.name), h('dd', {}, row.value)]),
        found.same_metrics.map((row) => [h('dt', {}, row.name),
        h('dd', {}, quantity(row.values[0], row.unit))]))));
}

// A thin bar under a figure: its size beside the largest of the row.
function spark(values, value) {
  const top = Math.max(...values.map((v) => Math.abs(v ?? 0)));
  if (!top || value === null || values.some((v) => v < 0)) return null;
  return h('span', { class: 'spark', 'aria-hidden': 'true' },
    h('i', { style: { width: `${(Math.abs(value) / top) * 100}%` } }));
}
