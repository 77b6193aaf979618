// The frame: opens the session, and shows the view that the address names.
//
// A view is a module that exports `show(main, context)`. The context has
//   args    the pieces of the address behind the view's name: #/systems/chord gives ['chord']
//   query   what stands behind a question mark in the address, as URLSearchParams
//   signal  aborted when the reader goes elsewhere: give it to fetch, timers and listeners
//   title(text)  names the tab;  wide()  takes the whole width of the window

import { h, fill, get, unlock, note, Refused } from './kit.js';
import * as live from './live.js';

export const VIEWS = [
  { name: 'catalogue', label: 'Catalogue', module: './catalogue.js' },
  { name: 'ledger', label: 'Ledger', module: './ledger.js' },
  { name: 'systems', module: './system.js', under: 'catalogue' },
  { name: 'start', label: 'Start', module: './start.js' },
  { name: 'jobs', label: 'Jobs', module: './jobs.js' },
  { name: 'runs', label: 'Runs', module: './runs.js' },
  { name: 'run', module: './run.js', under: 'runs' },
  { name: 'side', module: './side.js', under: 'runs' },
  { name: 'timeline', module: './timeline.js', under: 'runs' },
  { name: 'playground', label: 'Playground', module: './playground.js' },
];

const main = document.getElementById('main');
const nav = document.getElementById('nav');
let leaving = null;
let first = true;

function parse() {
  const [path, query] = window.location.hash.replace(/^#\/?/, '').split('?');
  const [name, ...args] = path.split('/').filter(Boolean);
  return { view: VIEWS.find((each) => each.name === (name || 'catalogue')), args,
    query: new URLSearchParams(query || '') };
}

function drawNav(view) {
  const here = view && (view.under || view.name);
  fill(nav, h('ul', {}, VIEWS.filter((each) => each.label).map((each) => h('li', {},
    h('a', { href: `#/${each.name}`, 'aria-current': each.name === here ? 'page' : null },
      each.label)))));
  // On a phone the row of views scrolls; scrollIntoView would also move where the Tab key begins.
  const current = nav.querySelector('[aria-current]');
  if (current) nav.firstChild.scrollLeft = current.offsetLeft - nav.firstChild.offsetLeft - 40;
}

async function show() {
  if (window.location.hash.startsWith('#token=')) { begin(); return; }
  leaving?.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const { view, args, query } = parse();
  drawNav(view);
  main.className = '';
  if (!view) {
    fill(main, h('h1', {}, 'There is no such view'), h('p', {},
      h('a', { href: '#/catalogue' }, 'To the catalogue')));
    return;
  }
  const title = (text) => { document.title = `${text} · Orrery`; };
  title(view.label || view.name);
  const waiting = setTimeout(() => { if (!signal.aborted) fill(main,
    h('p', { class: 'waiting' }, 'One moment …')); }, 250);
  const place = h('div', { class: 'view' });
  try {
    const module = await import(view.module);
    await module.show(place, { args, query, signal, title, wide: () =>
      main.classList.add('wide') });
  } catch (failure) {
    if (signal.aborted || failure.name === 'AbortError') return;
    if (failure instanceof Refused && failure.status === 401) return;
    fill(place, h('h1', {}, failure.status === 404 ? 'Not found' : 'This view could not be shown'),
      h('p', {}, failure.message));
  } finally {
    clearTimeout(waiting);
  }
  if (signal.aborted) return;
  fill(main, place);
  place.dispatchEvent(new Event('shown'));
  if (!first) { main.focus({ preventScroll: true }); window.scrollTo(0, 0); }
  first = false;
}

// -- the session

async function openSession() {
  const found = /^#token=([A-Za-z0-9_-]+)$/.exec(window.location.hash);
  if (found) {
    // The token leaves the address at once, so that it is in no history and no screenshot.
    window.history.replaceState(null, '', '#/catalogue');
    await unlock(found[1]);
  }
  await get('/api/about');
}

function askToken(message) {
  live.stop();
  leaving?.abort();
  drawNav(null);
  const input = h('input', { type: 'password', autocomplete: 'off', required: true, id: 'token',
    spellcheck: 'false' });
  const send = async (event) => {
    event.preventDefault();
    try {
      const given = input.value.trim().replace(/^.*#token=/, '');
      await unlock(given);
      begin();
    } catch (failure) { note(failure.message, true); }
  };
  fill(main, h('form', { class: 'lone', onsubmit: send }, h('h1', {}, 'The page is locked'),
    h('p', {}, message || 'Open the address that ', message ? null : h('code', {}, 'orrery page'),
      message ? null : ' printed, or paste it here.'),
    h('label', { for: 'token' }, 'Address or token'), input,
      h('button', { type: 'submit', class: 'primary' }, 'Open')));
  input.focus();
}

function drawLive(jobs) {
  const open = [...jobs.values()].filter((job) => !live.isOver(job));
  const element = document.getElementById('live');
  element.hidden = open.length === 0;
  fill(element, h('span', { class: 'pulse', 'aria-hidden': 'true' }),
    `${open.length} ${open.length === 1 ? 'job' : 'jobs'}`);
}

async function begin() {
  try {
    await openSession();
  } catch (failure) {
    if (failure.status === 401) askToken();
    else fill(main, h('div', { class: 'lone' }, h('h1', {}, 'The page cannot be opened'),
      h('p', {}, failure.message)));
    return;
  }
  live.start();
  window.removeEventListener('hashchange', show);
  window.addEventListener('hashchange', show);
  await show();
}

window.addEventListener('orrery-closed', () => { if (!first) askToken(); });
document.getElementById('skip').addEventListener('click', (event) =>
  { event.preventDefault(); main.focus(); });
// A slash goes to the search of a view, as in many a reader's editor.
window.addEventListener('keydown', (event) => {
  const busy = event.ctrlKey || event.metaKey || event.altKey
    || event.target.closest?.('input, select, textarea');
  const search = main.querySelector('input[type=search]');
  if (event.key === '/' && !busy && search) { event.preventDefault(); search.focus(); }
});
live.follow(drawLive);
begin();
