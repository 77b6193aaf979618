// The jobs as they are now: one stream for the whole page, whoever looks.

export const jobs = new Map();
const readers = new Set();
let stream = null;

export function start() {
  if (stream) return;
  stream = new EventSource('/api/jobs/events');
  stream.onmessage = (event) => {
    for (const job of JSON.parse(event.data).jobs.reverse()) jobs.set(job.id, job);
    for (const reader of readers) reader(jobs);
  };
}

export function stop() {
  if (stream) stream.close();
  stream = null;
}

// Calls `reader` with the jobs now and at each change, until the signal says that the view is gone.
export function follow(reader, signal) {
  readers.add(reader);
  signal?.addEventListener('abort', () => readers.delete(reader));
  reader(jobs);
}

export const newest = () => [...jobs.values()].reverse();
export const isOver = (job) => ['done', 'failed', 'cancelled'].includes(job.state);
