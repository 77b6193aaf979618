// The runs of this machine: a page at a time, found by words; some can be put side by side.

import { h, fill, get, badge, table, number, quantity, field, shortId, empty, go } from './kit.js';
import { glass } from './catalogue.js';

const PAGE = 50;
const MOST_SIDE = 6;
const chosen = new Set();

export async function show(main, { query, signal, title }) {
  title('Runs');
  let q = query.get('q') || '';
  let offset = Number(query.get('offset')) || 0;
  const list = h('div');
  const count = h('span', { class: 'soft', role: 'status', 'aria-live': 'polite' });
  const beside = h('button', { type: 'button', onclick: () =>
    go(`#/side/${[...chosen].join(',')}`) });
  const older = h('button', { type: 'button', onclick: () => { offset += PAGE; load(); } },
    'Older');
  const newer = h('button', { type: 'button', onclick: () =>
    { offset = Math.max(0, offset - PAGE); load(); } }, 'Newer');
  const search = h('input', { type: 'search', value: q,
    placeholder: 'system, problem, seed=3, id …', oninput: (event) =>
    { q = event.target.value; offset = 0; later(); } });
  let timer = null;
  const later = () => { clearTimeout(timer); timer = setTimeout(load, 180); };

  const drawChosen = () => {
    beside.disabled = chosen.size < 2;
    beside.textContent = chosen.size < 2 ? 'Side by side: tick two to six' : `Side by side: ${chosen.size} runs`;
  };
  const pick = (id, on) => {
    if (on) chosen.add(id); else chosen.delete(id);
    while (chosen.size > MOST_SIDE) chosen.delete(chosen.values().next().value);
    for (const box of list.querySelectorAll('input[type=checkbox]')) box.checked = chosen.has(
      box.value);
    drawChosen();
  };

  async function load() {
    let found;
    try {
      found = await get(`/api/runs?limit=${PAGE}&offset=${offset}&q=${encodeURIComponent(q)}`,
        signal);
    } catch (failure) {
      if (failure.name !== 'AbortError') fill(list, h('p', { class: 'bad' }, failure.message));
      return;
    }
    count.textContent = found.total ? `${found.offset + 1}–${found.offset + found.runs.length} of ${number(found.total)}` : '';
    older.disabled = found.offset + found.runs.length >= found.total;
    newer.disabled = found.offset === 0;
    fill(list, found.runs.length ? runTable(found.runs, pick, chosen)
      : found.all ? empty('No run fits.') : empty('There are no runs yet. ',
        h('a', { href: '#/systems/push-gossip' }, 'Make one: run push gossip')));
    const tail = new URLSearchParams(Object.entries({ q, offset: offset || '' })
      .filter(([, v]) => v)).toString();
    if (!signal.aborted) window.history.replaceState(null, '', `#/runs${tail ? `?${tail}` : ''}`);
  }
  drawChosen();
  fill(main, h('h1', {}, 'Runs'), h('p', { class: 'lead' },
    'Every run of this machine’s store, newest first; each is named by the hash of what was run.'),
    h('form', { role: 'search', class: 'row tools-row', onsubmit: (event) =>
      event.preventDefault() }, h('div', { class: 'search grow' }, field('Search', search),
      glass()), beside),
    list, h('nav', { class: 'row between pages', 'aria-label': 'Pages' },
      h('span', { class: 'row' }, newer, older), count));
  await load();
}

// `pick(id, on)` gives each row a box to tick; `brief` leaves out what a system's own page says.
export function runTable(found, pick, picked, brief = false) {
  const heads = [...(pick ? [{ text: '', class: 'tick' }] : []),
    { text: 'Run', class: 'plain nowrap' }, ...(brief ? [] : ['System', 'Problem']),
    { text: 'Seed', right: true }, 'Outcome', { text: 'Metrics', class: 'metriccell' },
    { text: 'Made', class: 'nowrap soft' }];
  return table(heads, found.map((run) => ({ cells: [
    ...(pick ? [h('input', { type: 'checkbox', value: run.id, checked: picked.has(run.id),
      'aria-label': `Put run ${shortId(run.id)} side by side`, onchange: (event) =>
      pick(run.id, event.target.checked) })] : []),
    h('a', { class: 'name mono', href: `#/run/${run.id}` }, shortId(run.id)),
    ...(brief ? [] : [[run.system ? h('a', { href: `#/systems/${run.system}` }, run.system)
      : run.part, run.system && run.part !== run.system && h('small', {}, ` as ${run.part}`)],
      run.problem || '']),
    run.seed === null ? '' : String(run.seed), outcome(run),
    run.metrics ? h('span', { class: 'mini' }, run.metrics.slice(0, 3)
      .map((m) => h('span', { title: m.says }, `${m.name} `,
      h('b', {}, quantity(m.value, m.unit))))) : '',
    run.made,
  ] })), { label: 'Runs' });
}

export function outcome(run) {
  if (run.damaged) return h('span', { title: run.damaged }, badge('failed', ''), ' damaged');
  if (run.partial) return badge('inconclusive', '') && h('span', { class: 'badge open' },
    'stopped early');
  if (run.violations) return h('span', { class: 'badge bad' },
    h('span', { 'aria-hidden': 'true', class: 'dot' }, '○'),
    `${run.violations} ${run.violations === 1 ? 'violation' : 'violations'}`);
  return h('span', { class: 'badge good' }, h('span', { 'aria-hidden': 'true', class: 'dot' }, '●'),
    'sound');
}
