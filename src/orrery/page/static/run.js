// One run: what it was, what came out, and where to look closer.

import { h, fill, get, table, number, quantity, shortId } from './kit.js';
import { outcome } from './runs.js';

export async function show(main, { args, signal, title }) {
  const run = await get(`/api/runs/${encodeURIComponent(args[0] || '')}`, signal);
  title(`Run ${shortId(run.id)}`);
  fill(main, h('p', { class: 'over' }, h('a', { href: '#/runs' }, 'Runs')),
    h('h1', {}, run.name, h('span', { class: 'soft light' }, ` on ${run.problem || 'no problem'}`)),
    h('p', { class: 'meta' }, outcome({ ...run, violations: run.violations_count }),
      h('code', {}, run.id), [`seed ${run.seed}`, `${run.engine}, ${run.kind}`,
      run.date].map((text) => h('span', {}, text))),
    h('div', { class: 'row acts' }, h('a', { class: 'button', href: `#/timeline/${run.id}` },
      'Timeline and space-time'), run.system && h('a', { class: 'button',
      href: `#/systems/${run.system}` }, 'Its system'),
      h('a', { class: 'button', href: `/api/runs/${run.id}/report`, download: '' },
        'Download the report')),
    h('div', { class: 'two' }, h('div', {},
      run.violations.length > 0 && [h('h2', {}, 'Violations'),
        h('ul', { class: 'violations' }, run.violations.map((v) =>
        h('li', {}, h('strong', {}, v.kind), ' ', v.message, v.time_s !== null
        && h('small', {}, ` at ${quantity(v.time_s, 's')}`)))),
        run.violations_count > run.violations.length && h('p', { class: 'soft' },
          `and ${run.violations_count - run.violations.length} more`)],
      h('h2', {}, 'Metrics'),
      table([{ text: 'Metric', class: 'plain nowrap' },
        { text: 'Value', right: true, class: 'nowrap' }, { text: 'Better', class: 'soft' },
        { text: 'What it says', class: 'soft' }],
        run.metrics.map((m) => [m.name, h('b', {}, quantity(m.value, m.unit)), m.better, m.says]),
          { label: 'Metrics' })),
    h('aside', {}, h('div', { class: 'card' }, h('h2', {}, 'What was run'), facts([
      ['system', run.system || run.class], ['problem', run.problem], ['seed', run.seed],
        ['engine', `${run.engine}, ${run.kind}`], ['world', run.world],
        ['took', `${quantity(run.seconds, 's')}, ended ${run.ended}`],
      ['events', number(run.events)], ['messages', number(run.messages)],
        ['bytes', quantity(run.bytes, 'B')], ['digest', run.digest.slice(0, 20)],
    ]), knobs('Knobs', run.knobs), knobs('Problem', run.problem_knobs),
      knobs('Environment', texts(run.environment)),
    h('p', {}, h('small', {}, 'Again, event by event:'), h('br'), h('code', {}, run.command))))));
}

const texts = (object) => Object.fromEntries(Object.entries(object)
  .map(([k, v]) => [k, typeof v === 'object' ? JSON.stringify(v) : String(v)]));
const facts = (pairs) => h('dl', { class: 'facts' }, pairs.filter(([, v]) => v !== null
  && v !== undefined && v !== '').map(([k, v]) => [h('dt', {}, k), h('dd', {}, String(v))]));

function knobs(name, values) {
  const pairs = Object.entries(values);
  return pairs.length > 0 && h('details', {}, h('summary', {}, `${name} (${pairs.length})`),
    facts(pairs));
}
