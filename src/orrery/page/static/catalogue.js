// The catalogue: every system, found by what is typed and by filters; the address keeps them.

import { h, fill, get, badge, table, field, select, number } from './kit.js';

const FILTERS = ['room', 'status', 'verdict', 'engine', 'shape'];

export async function show(main, { query, signal, title }) {
  title('Catalogue');
  const { systems, verdicts } = await get('/api/catalogue', signal);
  const rank = { checked: 0, working: 1, planned: 2 };
  systems.sort((a, b) => rank[a.status] - rank[b.status] || a.name.localeCompare(b.name));
  const published = systems.filter((each) => each.origin === 'catalogue');
  const judged = published.reduce((sum, each) => sum + Object.values(each.verdicts)
    .reduce((a, b) => a + b, 0), 0);
  const chosen = Object.fromEntries([['q', ''], ['origin', 'catalogue'],
    ...FILTERS.map((name) => [name, ''])]
    .map(([name, value]) => [name, query.get(name) ?? value]));
  const words = new Map(systems.map((each) => [each.id,
    `${each.id} ${each.name} ${each.title} ${each.job} ${each.room} ${each.problem}`.toLowerCase()]));

  const fits = (each, without) => {
    const pass = (name, test) => name === without || !chosen[name] || test(chosen[name]);
    return chosen.q.toLowerCase().split(/\s+/).filter(Boolean)
      .every((word) => words.get(each.id).includes(word))
      && pass('origin', (v) => v === 'all' || each.origin === v)
        && pass('room', (v) => each.room === v)
      && pass('status', (v) => each.status === v) && pass('shape', (v) => each.shape === v)
      && pass('engine', (v) => each.engines.includes(v))
      && pass('verdict', (v) => (v === 'none yet' ? Object.keys(each.verdicts).length === 0
        : each.verdicts[v] > 0));
  };
  const values = {
    room: [...new Set(systems.map((each) => each.room))].sort(),
      status: ['checked', 'working', 'planned'],
    verdict: [...verdicts, 'none yet'], engine: ['virtual', 'processes'],
    shape: ['node', 'worker', 'policy', 'routine', 'estimator'],
  };
  const has = {
    room: (each, v) => each.room === v, status: (each, v) => each.status === v, shape: (each, v) =>
      each.shape === v,
    engine: (each, v) => each.engines.includes(v),
    verdict: (each, v) => (v === 'none yet' ? Object.keys(each.verdicts).length === 0
      : each.verdicts[v] > 0),
  };

  const search = h('input', { type: 'search', value: chosen.q,
    placeholder: 'name, title, what it is for …', autocomplete: 'off', id: 'search',
    oninput: (event) => { chosen.q = event.target.value; draw(); } });
  const boxes = Object.fromEntries(FILTERS.map((name) =>
    [name, select([['', 'any']], '', { onchange: (event) =>
    { chosen[name] = event.target.value; draw(); } })]));
  const origin = h('div', { class: 'tabs', role: 'group', 'aria-label': 'Which systems' },
    [['catalogue', `Published ${published.length}`], ['classic',
    `Classics ${systems.length - published.length}`], ['all', 'All']]
    .map(([name, text]) => h('button', { type: 'button', 'data-name': name, onclick: () =>
      { chosen.origin = name; draw(); } }, text)));
  const more = filterButton();
  const count = h('p', { class: 'soft', role: 'status', 'aria-live': 'polite' });
  const list = h('div');

  function draw() {
    for (const name of FILTERS) {
      const rest = systems.filter((each) => fits(each, name));
      const options = values[name].map((v) => [v, rest.filter((each) => has[name](each, v))
        .length]);
      fill(boxes[name], h('option', { value: '' }, 'any'),
        options.filter(([v, n]) => n || v === chosen[name])
        .map(([v, n]) => h('option', { value: v }, `${v} (${n})`)));
      boxes[name].value = chosen[name];
    }
    for (const button of origin.children) button.setAttribute('aria-selected',
      button.dataset.name === chosen.origin);
    const found = systems.filter((each) => fits(each));
    count.textContent = found.length === 1 ? '1 system' : `${found.length} systems`;
    fill(list, found.length ? systemTable(found) : h('p', { class: 'empty' }, 'Nothing fits. ',
      h('a', { href: '#/catalogue?origin=all' }, 'Show everything')));
    const kept = Object.entries(chosen).filter(([name, v]) => v
      && !(name === 'origin' && v === 'catalogue'));
    const tail = new URLSearchParams(kept).toString();
    window.history.replaceState(null, '', `#/catalogue${tail ? `?${tail}` : ''}`);
  }

  fill(main,
    h('h1', {}, 'Catalogue'),
    h('p', { class: 'lead' },
      'Published systems of distributed computing, as working code beside their rivals, and what became of their claims here.'),
    h('ul', { class: 'counts' }, [[published.length, 'published systems'],
      [published.filter((e) => e.built).length, 'built'],
      [published.filter((e) => e.status === 'checked').length, 'checked'],
        [published.reduce((s, e) => s + e.claims, 0), 'claims'], [judged, 'judged'],
      [systems.length - published.length, 'classics']]
      .map(([n, text]) => h('li', {}, h('b', {}, number(n)), h('span', {}, text)))),
    h('form', { role: 'search', class: 'tools', onsubmit: (event) => event.preventDefault() },
      h('div', { class: 'search' }, field('Search', search), glass()), more,
      FILTERS.map((name) => field(name[0].toUpperCase() + name.slice(1), boxes[name]))),
    h('div', { class: 'row between' }, origin, count), list);
  draw();
}

// On a phone the filters are folded away behind this button.
export function filterButton() {
  const button = h('button', { type: 'button', class: 'filters', 'aria-expanded': 'false',
    onclick: () => {
    const open = button.form.classList.toggle('open');
    button.setAttribute('aria-expanded', String(open));
  } }, 'Filters');
  return button;
}

export function glass() {
  return h('svg', { viewBox: '0 0 16 16', 'aria-hidden': 'true' },
    h('circle', { cx: 7, cy: 7, r: 4.6, 'stroke-width': 1.5 }),
    h('path', { d: 'M10.6 10.6L14 14', 'stroke-width': 1.5 }));
}

function systemTable(found) {
  return table([{ text: 'System', class: 'plain wide' }, 'Room', 'Shape', 'Status', 'Verdicts',
    { text: 'Works when', class: 'nowrap' }], found.map((each) => [
    [h('a', { class: 'name', href: `#/systems/${each.id}` }, each.name),
      h('span', { class: 'sub clip' }, each.job || each.title)],
    each.room, each.shape, badge(each.status), verdictDots(each),
    each.works_when ? h('span', { class: each.met === each.works_when ? 'good' : 'soft' },
      `${each.met} of ${each.works_when} met`) : '',
  ]), { label: 'Systems' });
}

function verdictDots(each) {
  const found = Object.entries(each.verdicts);
  if (!found.length) return each.claims ? h('span', { class: 'soft' },
    `${each.claims} unjudged`) : '';
  return h('span', { class: 'chips' }, found.map(([word, n]) => badge(n > 1 ? `${word}` : word, ''))
    .map((node, i) => (found[i][1] > 1 ? [node, h('small', {}, `×${found[i][1]}`)] : node)));
}
