// The forms that start work: worlds, knobs, and the sending of a job.

import { h, fill, get, post, field, select, note, go } from './kit.js';

// A field for a world: a name of the list, or nothing for the problem's own; numbers behind a colon.
export function worldField(worlds) {
  const list = h('datalist', { id: 'worlds' }, worlds.flatMap((each) => {
    const first = each.takes[0];
    return h('option', { value: first ? `${each.name}:${first.default}` : each.name }, each.says);
  }));
  const input = h('input', { list: 'worlds', placeholder: 'the problem’s own', autocomplete: 'off',
    spellcheck: 'false', pattern: '[a-z0-9_]+(:[a-z0-9_.=,+\\-]+)?',
    title: 'A name and numbers, such as lan:50' });
  const says = h('small');
  const tell = () => {
    const found = worlds.find((each) => each.name === input.value.split(':')[0]);
    fill(says, found
      ? `${found.says} Takes ${found.takes.map((t) => t.name).join(', ') || 'nothing'}.` : 'A name of the list and numbers, such as lan:50.');
  };
  input.addEventListener('input', tell);
  tell();
  const whole = field('World', input);
  whole.append(says, list);
  return { element: whole, value: () => input.value.trim() };
}

// One field for each knob; what is left empty keeps its default.
export function knobFields(knobs, systems) {
  const controls = knobs.map((knob) => {
    const hint = [knob.takes, knob.unit].filter(Boolean).join(', in ');
    let control;
    if (knob.choices.length) control = select([['', `${knob.default || '(empty)'} (default)`],
      ...knob.choices.map(String)], '');
    else if (knob.part) control = select([['', 'default'], ...systems], '');
    else control = h('input', { placeholder: knob.default || '(empty)', autocomplete: 'off',
      spellcheck: 'false', maxlength: 200 });
    return { knob, control, element: field(knob.name, control, hint) };
  });
  return {
    elements: controls.map((each) => each.element),
    values: () => Object.fromEntries(controls.filter((each) => each.control.value.trim() !== '')
      .map((each) => [each.knob.name, each.control.value.trim()])),
  };
}

export async function startJob(ask) {
  try {
    const job = await post('/api/jobs', ask);
    note(`${job.title} has begun.`);
    go(`#/jobs/${job.id}`);
  } catch (failure) {
    note(failure.message, true);
  }
}

export function whole(text, fallback) {
  const value = Number(text);
  return text.trim() !== '' && Number.isInteger(value) ? value : fallback;
}

// A form that sends itself once: the button rests while the server thinks.
export function form(fields, button, ask, extra) {
  const send = h('button', { type: 'submit', class: 'primary' }, button);
  return h('form', { class: 'ask', onsubmit: async (event) => {
    event.preventDefault();
    send.disabled = true;
    try { await startJob(ask()); } finally { send.disabled = false; }
  } }, fields, h('div', { class: 'row' }, send, extra));
}

export const worlds = (signal) => get('/api/worlds', signal);
