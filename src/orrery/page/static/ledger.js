// The ledger: every claim, what was published against what was found.

import { h, fill, get, badge, table, field, select, number, interval } from './kit.js';
import { glass, filterButton } from './catalogue.js';
import { claimPicture } from './picture.js';

export async function show(main, { query, signal, title }) {
  title('Ledger');
  const { claims, verdicts } = await get('/api/ledger', signal);
  const chosen = { q: query.get('q') || '', verdict: query.get('verdict') || 'judged',
    room: query.get('room') || '', kind: query.get('kind') || '' };
  const judged = claims.filter((each) => each.verdict);
  const counts = verdicts.map((word) => [word, claims.filter((each) => each.verdict === word)
    .length]);
  const untestable = claims.filter((each) => !each.testable).length;

  const fits = (each) => {
    const text = `${each.id} ${each.name} ${each.metric} ${each.says} ${each.against || ''} ${each.setting}`.toLowerCase();
    const v = chosen.verdict;
    const state = v === '' || (v === 'judged' && each.verdict)
      || (v === 'open' && !each.verdict && each.testable)
      || (v === 'untestable' && !each.testable) || each.verdict === v;
    return state && (!chosen.room || each.room === chosen.room)
      && (!chosen.kind || each.kind === chosen.kind)
      && chosen.q.toLowerCase().split(/\s+/).filter(Boolean).every((word) => text.includes(word));
  };
  const search = h('input', { type: 'search', value: chosen.q,
    placeholder: 'system, metric, rival …', oninput: (event) =>
    { chosen.q = event.target.value; draw(); } });
  const change = (name) => ({ onchange: (event) =>
    { chosen[name] = event.target.value; draw(); } });
  const verdict = select([['', `every claim (${claims.length})`],
    ['judged', `judged (${judged.length})`], ...counts.map(([word, n]) => [word, `${word} (${n})`]),
    ['open', `not judged yet (${claims.length - judged.length - untestable})`],
      ['untestable', `cannot be tested (${untestable})`]], chosen.verdict, change('verdict'));
  const room = select([['', 'any'], ...[...new Set(claims.map((each) => each.room))].sort()],
    chosen.room, change('room'));
  const kind = select([['', 'any'], 'measured', 'modelled', 'published'], chosen.kind,
    change('kind'));
  const count = h('p', { class: 'soft', role: 'status', 'aria-live': 'polite' });
  const list = h('div');

  function draw() {
    const found = claims.filter(fits);
    count.textContent = found.length === 1 ? '1 claim' : `${found.length} claims`;
    fill(list, found.length ? claimTable(found.slice(0, 400))
      : h('p', { class: 'empty' }, 'No claim fits.'));
    const tail = new URLSearchParams(Object.entries(chosen)
      .filter(([name, v]) => v && !(name === 'verdict' && v === 'judged'))).toString();
    window.history.replaceState(null, '', `#/ledger${tail ? `?${tail}` : ''}`);
  }
  fill(main, h('h1', {}, 'Ledger of claims'),
    h('p', { class: 'lead' },
      'What papers say, and what was found when their systems ran here. A claim that does not hold here is a finding too.'),
    h('ul', { class: 'counts' }, counts.map(([word, n]) =>
      h('li', {}, h('b', {}, number(n)), badge(word)))),
    h('form', { role: 'search', class: 'tools few', onsubmit: (event) => event.preventDefault() },
      h('div', { class: 'search' }, field('Search', search), glass()), filterButton(),
        field('Verdict', verdict), field('Room', room), field('Kind', kind)),
    legend(), count, list);
  draw();
}

export function legend() {
  return h('p', { class: 'legend soft' }, [['said-key', '▼', 'published'],
    ['', '●', 'found here, with its interval'], ['', '○',
    'mechanism switched off']].map(([name, mark, text]) =>
    h('span', { class: 'nowrap' }, h('span', { class: name || null, 'aria-hidden': 'true' }, mark),
    ` ${text}`)));
}

function claimTable(found) {
  return table([{ text: 'System', class: 'plain' }, { text: 'Claim', class: 'claimcell' },
    { text: 'Published and found', class: 'piccell' },
    { text: 'Found', right: true, class: 'nowrap' }, { text: 'Off', right: true }, 'Verdict',
      { text: 'Kind', class: 'nowrap' }, { text: 'Date', class: 'nowrap soft' }],
  found.map((each) => [
    h('a', { class: 'name', href: `#/systems/${each.id}` }, each.name),
    [each.metric, ' ', h(each.says.length > 28 ? 'span' : 'strong', {}, each.says), each.against
      && h('span', { class: 'sub' }, `against ${each.against}`)],
    claimPicture(each, 250) || '',
    each.measured === null ? '' : [number(each.measured), each.lo !== null
      && h('span', { class: 'sub' }, interval(each.lo, each.hi))],
    each.off === null ? '' : number(each.off),
    each.testable ? badge(each.verdict) : badge(null, 'cannot be tested'),
    h('span', { class: 'kind' }, each.kind), each.date || '',
  ]), { label: 'Claims' });
}
