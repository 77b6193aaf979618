// Jobs: what runs now, how far it is, how to stop it; and what a finished one found.

import { h, fill, get, post, badge, note, duration, empty } from './kit.js';
import * as live from './live.js';
import { result } from './results.js';

export async function show(main, context) {
  if (context.args[0]) { await showOne(main, context); return; }
  context.title('Jobs');
  const list = h('ul', { class: 'jobs' });
  fill(main, h('h1', {}, 'Jobs'),
    h('p', { class: 'lead' },
      'Each job is a child process of the command line. Two run at a time, the rest wait; all end with the page. Runs that were finished are kept.'), list);
  live.follow(() => {
    const rows = live.newest();
    fill(list, rows.length ? rows.map((job) => h('li', { class: 'card job' }, jobHead(job, true),
      progress(job))) : h('li', {}, empty('Nothing has been started yet. ',
      h('a', { href: '#/catalogue?status=working&origin=all' }, 'Run or check a system'), ' or ',
        h('a', { href: '#/start' }, 'compare some'), '.')));
  }, context.signal);
}

function jobHead(job, link) {
  const over = live.isOver(job);
  const stop = !over && h('button', { type: 'button', class: 'small danger', onclick: () =>
    cancel(job), 'aria-label': `Cancel: ${job.title}` }, 'Cancel');
  if (!link) return h('header', {}, badge(job.state), stop);
  return h('header', {}, h('a', { class: 'name', href: `#/jobs/${job.id}` }, job.title),
    h('span', { class: 'row' }, badge(job.state), stop));
}

async function cancel(job) {
  try { await post(`/api/jobs/${job.id}/cancel`,
    {}); note(`${job.title} was cancelled.`); } catch (failure) { note(failure.message, true); }
}

function progress(job) {
  const over = live.isOver(job);
  const known = job.total || (over && job.state === 'done');
  const share = over && job.state === 'done' ? 1 : job.total ? Math.min(1,
    job.done / job.total) : 0;
  const kind = job.state === 'done' ? 'good' : ['failed',
    'cancelled'].includes(job.state) ? 'bad' : '';
  const bar = h('div', {
    class: `progress ${kind} ${!known && job.state === 'running' ? 'stripe' : ''}`,
    role: 'progressbar', 'aria-label': job.title,
    'aria-valuemin': 0, 'aria-valuemax': 100,
      'aria-valuenow': known ? Math.round(share * 100) : null },
  h('i', { style: known ? { width: `${share * 100}%` } : job.state === 'running' ? {}
    : { width: '0' } }));
  const steps = job.total ? `${job.done} of ${job.total}` : job.done ? `${job.done} ${job.done === 1 ? 'run' : 'runs'} done` : '';
  const said = job.error || (over ? '' : job.state === 'queued' ? 'waits for its turn' : job.now
    || 'at work');
  return [bar, h('div', { class: 'line' }, h('span', {}, [steps, said].filter(Boolean).join(' · ')),
    h('span', {}, job.state === 'queued' ? '' : duration(job.seconds)))];
}

async function showOne(main, { args, signal, title }) {
  const full = await get(`/api/jobs/${encodeURIComponent(args[0])}`, signal);
  title(full.title);
  const card = h('div', { class: 'card job', 'aria-live': 'off' });
  const found = h('div', { class: 'found' });
  const talk = h('div');
  let drawn = false;
  fill(main, h('p', { class: 'over' }, h('a', { href: '#/jobs' }, 'Jobs')), h('h1', {}, full.title),
    h('p', { class: 'meta' }, h('code', {}, full.command), h('span', {}, `${full.date} UTC`)), card,
      found, talk);

  const drawResult = (job) => {
    if (drawn) return;
    drawn = true;
    fill(found, job.result && job.state === 'done' && h('h2', {}, 'What was found'),
      job.state === 'done' && result(job), job.report && h('p', {},
      h('a', { class: 'button', href: `/api/jobs/${job.id}/report`, download: '' },
      'Download the report')));
  };
  const draw = async () => {
    const job = live.jobs.get(full.id) || full;
    fill(card, jobHead(job, false), progress(job));
    fill(talk, job.talk.length ? h('details', { open: job.state === 'failed' },
      h('summary', {}, 'What it said'), h('pre', {}, h('code', {}, job.talk.join('\n')))) : null);
    if (live.isOver(job) && !drawn) {
      try { drawResult(await get(`/api/jobs/${job.id}`,
        signal)); } catch (failure) { if (failure.name !== 'AbortError') note(failure.message,
        true); }
    }
  };
  if (live.isOver(full)) drawResult(full);
  live.follow(draw, signal);
  // The time of a job goes on between two messages.
  const clock = setInterval(() => { const job = live.jobs.get(full.id); if (job
    && job.state === 'running') { job.seconds += 1; draw(); } }, 1000);
  signal.addEventListener('abort', () => clearInterval(clock));
}
