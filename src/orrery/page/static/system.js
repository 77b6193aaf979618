// The page of one system: how it works, what was claimed and found, where it holds, and its runs.

import { h, fill, get, badge, runs, blocks, table, field, select, number, interval,
  empty } from './kit.js';
import { claimPicture } from './picture.js';
import { legend } from './ledger.js';
import { runTable } from './runs.js';
import { worldField, knobFields, form, startJob, whole } from './forms.js';

export async function show(main, { args, signal, title }) {
  const [one, worlds] = await Promise.all([get(`/api/systems/${encodeURIComponent(args[0] || '')}`,
    signal), get('/api/worlds', signal)]);
  title(one.name);
  const sections = [
    ['claims', 'Claims', one.claims.length ? claims(one) : null],
    ['region', 'Where it holds', one.built ? region(one) : null],
    ['how', 'How it works', howItWorks(one)],
    ['knobs', 'Knobs', one.built ? knobs(one) : null],
    ['works', 'Works when', one.works_when.length ? worksWhen(one) : null],
    ['last', 'Last runs', one.built ? lastRuns(one) : null],
    ['notes', 'Notes', one.notes.length ? h('p', {}, runs(one.notes)) : null],
  ].filter(([, , body]) => body);
  const side = h('aside', { 'aria-label': 'Start work' }, one.built ? starter(one, worlds)
    : planned(one));
  fill(main,
    h('p', { class: 'over' }, h('a', { href: '#/catalogue' }, 'Catalogue'), ' / ',
      h('a', { href: `#/catalogue?room=${one.room}&origin=all` }, one.room)),
    h('h1', {}, one.name),
    h('p', { class: 'meta' }, badge(one.status), h('code', {}, one.id), h('span', {}, one.shape),
      one.problem && h('span', {}, 'answers ', h('a', { href: `#/start/compare/${one.problem}` },
      one.problem)),
      one.engines.map((engine) => h('span', { class: 'chip' }, `passed on ${engine}`)),
      one.built && h('button', { type: 'button', class: 'small narrow', onclick: () =>
        side.scrollIntoView({ behavior: 'smooth' }) }, 'Run, check, compare')),
    h('div', { class: 'two' },
      h('article', {}, h('p', { class: 'lead' }, runs(one.job)), paper(one),
        sections.map(([id, name, body]) => h('section', { 'aria-labelledby': `h-${id}` },
          h('h2', { id: `h-${id}` }, name), body))),
      side));
}

function paper(one) {
  if (!one.title) return null;
  return h('p', { class: 'soft' }, h('cite', {}, one.title), one.date && `, ${one.date}`, one.arxiv
    && `, arXiv ${one.arxiv}`, '. ', Object.values(one.paper).join(' '));
}

function howItWorks(one) {
  const body = [];
  if (one.mechanisms.length) body.push(h('ol', {}, one.mechanisms.map((text) =>
    h('li', {}, runs(text)))));
  if (one.doc.length) body.push(one.mechanisms.length ? h('details', {},
    h('summary', {}, 'As it is built here'), blocks(one.doc)) : blocks(one.doc));
  if (one.baselines.length || one.rivals.length) {
    body.push(h('p', {}, h('strong', {}, 'Compared with '), one.baselines.length
      ? one.baselines.flatMap((each, i) => [i ? ', ' : '', each.id
        ? h('a', { href: `#/systems/${each.id}` }, each.name) : each.name])
      : one.rivals.flatMap((text, i) => [i ? '; ' : '', runs(text)])));
  }
  return body.length ? body : null;
}

function claims(one) {
  return [legend(), one.claims.map((each) => h('div', { class: 'claim' },
    h('div', {}, h('h3', {}, each.metric, each.testable ? badge(each.verdict)
      : badge(null, 'cannot be tested')),
      h('p', {}, 'Published ', h('strong', {}, each.says || each.form), each.against
        && ` against ${each.against}`, '.'),
      each.measured !== null && h('p', {}, `Found ${number(each.measured)}`, each.lo !== null
        && ` ${interval(each.lo, each.hi)}`,
        each.off !== null && `; mechanism off ${number(each.off)}`, ' ',
          h('span', { class: 'kind' }, `${each.kind}, ${each.date}`)),
    ), h('div', {}, claimPicture(each)), each.setting && h('p', { class: 'setting' }, each.setting),
    !each.testable && h('p', { class: 'setting' }, runs(each.untestable))))];
}

function region(one) {
  const testable = one.claims.filter((each) => each.testable);
  const start = testable.length ? mapForm(one, testable) : null;
  const maps = one.maps.map((key) => h('a', { href: `/api/systems/${one.id}/maps/${key}`,
    target: '_blank', rel: 'noopener' },
    h('img', { class: 'region', src: `/api/systems/${one.id}/maps/${key}`,
      alt: `The region in which a claim of ${one.name} holds, over two parameters`,
      loading: 'lazy' })));
  if (!maps.length && !start) return null;
  return [maps.length ? maps
    : empty('No map has been drawn yet: it shows over which values of two parameters a claim holds, and where the line of break-even runs.'), start];
}

function mapForm(one, testable) {
  const claim = select(testable.map((each) => [each.n, `${each.metric} ${each.says}`]),
    testable[0].n);
  const numbers = one.knobs.filter((knob) => /number/.test(knob.takes)).map((knob) => knob.name);
  const list = h('datalist', { id: 'parameters' }, [...numbers, 'network.latency_s',
    'network.bandwidth_Bps', 'network.drop'].map((name) => h('option', { value: name })));
  const axis = (label, name) => {
    const input = h('input', { required: true, list: 'parameters', value: name, spellcheck: 'false',
      pattern: '[A-Za-z_][A-Za-z0-9_.]*' });
    const lo = h('input', { required: true, inputmode: 'decimal', 'aria-label': `${label}: lowest`,
      placeholder: 'from' });
    const hi = h('input', { required: true, inputmode: 'decimal', 'aria-label': `${label}: highest`,
      placeholder: 'to' });
    return { element: h('div', { class: 'axis' }, field(label, input), lo, hi), value: () =>
      ({ name: input.value.trim(), lo: Number(lo.value), hi: Number(hi.value) }) };
  };
  const x = axis('Across', numbers[0] || '');
  const y = axis('Up', 'network.latency_s');
  // The knobs of the problem are parameters too; they are asked for when the form is opened.
  const more = async () => {
    const problem = one.problem
      && list.dataset.whole !== 'yes' ? await get(`/api/problems/${one.problem}`) : null;
    list.dataset.whole = 'yes';
    for (const knob of problem?.knobs || []) if (/number/.test(knob.takes)) list.append(h('option',
      { value: knob.name }));
  };
  return h('details', { ontoggle: more }, h('summary', {}, 'Draw a map'),
    form([h('div', { class: 'grid' }, field('Claim', claim)), x.element, y.element, list], 'Draw',
    () => ({ kind: 'when', system: one.id, claim: Number(claim.value), x: x.value(),
      y: y.value() }),
    h('small', {}, 'Judges up to 40 points, each with its own runs: this can take minutes.')));
}

function knobs(one) {
  if (one.trouble) return h('p', { class: 'bad' }, one.trouble);
  if (!one.knobs.length) return h('p', { class: 'soft' }, 'It has no knobs.');
  const said = one.knobs.some((knob) => knob.says.length);
  const heads = [{ text: 'Knob', class: 'plain nowrap' }, { text: 'Default', class: 'mono' },
    'Unit', 'Takes', ...(said ? ['What it does'] : [])];
  return table(heads, one.knobs.map((knob) => [h('code', {}, knob.name), knob.default, knob.unit,
    knob.choices.length ? knob.choices.join(', ') : knob.takes,
      ...(said ? [runs(knob.says)] : [])]), { label: 'Knobs' });
}

function worksWhen(one) {
  return h('ol', { class: 'lines' }, one.works_when.map((line) =>
    h('li', {}, h('span', { class: 'n' }, line.n),
    h('span', {}, runs(line.text), line.reason && h('small', {}, ` ${line.reason}`)),
      h('span', {}, badge(line.state)))));
}

function lastRuns(one) {
  if (!one.runs.length) return empty('It has not been run on this machine yet.');
  return [runTable(one.runs, null, null, true), h('p', { class: 'foot' },
    h('a', { href: `#/runs?q=${encodeURIComponent(one.id)}` }, 'All its runs'))];
}

// -- starting

function starter(one, worlds) {
  const seed = h('input', { inputmode: 'numeric', value: '0', pattern: '[0-9]+' });
  const engine = select([['virtual', 'virtual time'], ['processes', 'processes and sockets']],
    'virtual');
  const world = worldField(worlds);
  const set = knobFields(one.knobs, one.peers);
  const run = form([h('div', { class: 'pair' }, field('Seed', seed), field('Engine', engine)),
    world.element,
    one.knobs.length ? h('details', {}, h('summary', {}, `Knobs (${one.knobs.length})`),
      h('div', { class: 'stack' }, set.elements)) : null], 'Run',
  () => ({ kind: 'run', system: one.id, seed: whole(seed.value, -1), engine: engine.value,
    world: world.value(), knobs: set.values() }));
  const testable = one.claims.filter((each) => each.testable).length;
  return h('div', { class: 'card' }, h('h2', {}, 'Run it'), run,
    h('hr'), h('div', { class: 'stack' },
      testable > 0 && h('button', { type: 'button', onclick: () =>
        startJob({ kind: 'check', system: one.id }) },
        `Check its ${testable === 1 ? 'claim' : `${testable} claims`}`),
      one.peers.length > 1 && h('a', { class: 'button',
        href: `#/start/compare/${one.problem}?systems=${encodeURIComponent(one.id)}` },
        `Compare it with ${one.peers.length - 1} ${one.peers.length === 2 ? 'rival' : 'rivals'}`),
      testable > 0 && h('small', {}, 'A check here tells you the verdicts; the ledger is written by ',
        h('code', {}, 'orrery check --record'), ' only.')));
}

function planned(one) {
  return h('div', { class: 'card' }, h('h2', {}, 'Planned'),
    h('p', {}, 'Its paper is described; there is no code of it here yet.'),
    one.problem && h('a', { href: `#/start/compare/${one.problem}` },
      'See who answers the same question'));
}
