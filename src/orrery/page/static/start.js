// Start: compare the systems of a problem, or have them ranked for a world.

import { h, fill, get, blocks, field, select, empty } from './kit.js';
import { worldField, knobFields, form, whole } from './forms.js';

export async function show(main, { args, query, signal, title }) {
  title('Start');
  const [problems, worlds] = await Promise.all([get('/api/problems', signal),
    get('/api/worlds', signal)]);
  const open = problems.filter((each) => each.systems.length > 0);
  const kind = args[0] === 'choose' ? 'choose' : 'compare';
  const id = open.some((each) => each.id === args[1]) ? args[1] : (open.find((each) =>
    each.systems.length > 3) || open[0])?.id;
  const tabs = h('div', { class: 'tabs', role: 'group', 'aria-label': 'What to do' },
    [['compare', 'Compare'], ['choose', 'Choose']].map(([name, text]) => h('button', {
    type: 'button', 'aria-selected': String(name === kind), onclick: () =>
      { window.location.hash = `#/start/${name}/${id}`; },
  }, text)));
  const place = h('div');
  const pick = select(open.map((each) => [each.id,
    `${each.id} — ${each.systems.length} ${each.systems.length === 1 ? 'system' : 'systems'}`]), id,
    { onchange: (event) => { window.location.hash = `#/start/${kind}/${event.target.value}`; } });
  fill(main, h('h1', {}, 'Start'),
    h('p', { class: 'lead' }, kind === 'compare'
      ? 'Put the systems of one problem side by side, with intervals over seeds.' : 'Rank the systems of a problem for a world, and find what would change the answer.'),
    h('p', {}, 'To run or check one system, open it in the ',
      h('a', { href: '#/catalogue?status=working&origin=all' }, 'catalogue'), '.'),
    tabs, h('div', { class: 'problem-pick' }, field('Problem', pick)), place);
  if (!id) { fill(place, empty('No problem has a built system yet.')); return; }
  const problem = await get(`/api/problems/${id}`, signal);
  fill(place, ask(kind, problem, open.find((each) => each.id === id).systems, worlds,
    (query.get('systems') || '').split(',').filter(Boolean)));
}

function ask(kind, problem, systems, worlds, wanted) {
  const world = worldField(worlds);
  const by = select([['', 'the problem’s own'], ...problem.metrics.map((m) =>
    [m.name, `${m.name}${m.better ? ` (${m.better} is better)` : ''}`])], '');
  const seeds = h('input', { inputmode: 'numeric', pattern: '[0-9]*',
    placeholder: kind === 'compare' ? 'as many as it takes' : '3' });
  const set = knobFields(problem.knobs, []);
  const boxes = systems.map((id) => ({ id, box: h('input',
    { type: 'checkbox', checked: true, value: id }) }));
  const flips = h('input', { type: 'checkbox', checked: true });
  if (wanted.length) for (const { id, box } of boxes) box.checked = wanted.includes(id)
    || systems.length <= 8;
  const every = (on) => () => { for (const { box } of boxes) box.checked = on; };
  const send = () => {
    const some = boxes.filter(({ box }) => box.checked).map(({ id }) => id);
    const body = { kind, problem: problem.id, systems: some.length === boxes.length ? [] : some,
      world: world.value(), by: by.value, problem_knobs: set.values() };
    if (seeds.value.trim()) body.seeds = whole(seeds.value, -1);
    if (kind === 'choose') body.flips = flips.checked;
    return body;
  };
  return h('div', { class: 'two' }, h('div', { class: 'card' }, form([
    h('fieldset', {}, h('legend', {}, 'Systems'), h('div', { class: 'picks' },
      boxes.map(({ id, box }) => h('label', { class: 'choice' }, box, id))),
      systems.length > 4 && h('div', { class: 'row' }, h('button',
        { type: 'button', class: 'small', onclick: every(true) }, 'All'),
        h('button', { type: 'button', class: 'small', onclick: every(false) }, 'None'))),
    h('div', { class: 'grid' }, world.element, field('Judge by', by),
      field('Seeds of each', seeds)),
    kind === 'choose' && h('label', { class: 'choice' }, flips,
      'Look for what would flip the answer'),
    problem.knobs.length ? h('details', {}, h('summary', {},
      `Knobs of the problem (${problem.knobs.length})`),
      h('div', { class: 'grid' }, set.elements)) : null,
  ], kind === 'compare' ? 'Compare' : 'Choose', send)),
  h('aside', {}, h('h3', {}, problem.id), blocks(problem.doc.filter((b) => b.kind !== 'code'))));
}
