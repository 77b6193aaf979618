// The fault playground: stop a run where you like, break it by hand, see what comes of it, go back,
// try another future, and keep what you found as a test.

import { badge, empty, field, fill, get, go, h, note, post, select } from './kit.js';
import { Colours, Latest, icon, sheet, time } from './drawing.js';
import { SpaceTime, digits } from './spacetime.js';
import { Stage, Strip } from './stage.js';

const PRESETS = [
  { system: 'raft', seed: 7, title: 'Raft', says: 'Five machines keep one log. Crash the leader and see who follows it.' },
  { system: 'pbft', seed: 3, title: 'PBFT', says: 'Four nodes agree although one may lie. How many can you take away?' },
  { system: 'two-phase-commit', seed: 1, title: 'Two-phase commit', says: 'Crash the coordinator between its two phases and see who waits for ever.' },
  { system: 'push-gossip', world: 'lan:64', seed: 5, title: 'Push gossip, 64 nodes', says: 'A rumour spreads. Cut off a part of the nodes and heal it again.' },
];
const ENDS = { restart: 1, resume: 1, quicken: 1, rejoin: 1, heal: 1, hasten: 1, merge: 1 };
const SPEEDS = [['1.2', 'very slow'], ['0.4', 'slow'], ['0.12', 'as it is'], ['0.03', 'quick'], ['0.006', 'very quick']];

export async function show(main, context) {
  sheet();
  const { args, query, signal } = context;
  if (!args.length && !query.get('system') && !query.get('run')) { await chooser(main, context); return; }
  const asked = {};
  for (const name of ['system', 'run', 'world', 'problem']) if (query.get(name)) asked[name] = query.get(name);
  if (query.get('seed')) asked.seed = Number(query.get('seed'));
  let room;
  if (args.length && !asked.system && !asked.run) room = await get(`/api/playground/${args[0]}`, signal);
  else room = await post('/api/playground', asked, signal);
  context.wide();
  context.title(`${room.title}: playground`);
  const ground = new Ground(main, room, signal);
  await ground.begin(Number(query.get('at')) || 0);
}

// -- choosing

async function chooser(main, { signal, title }) {
  title('Playground');
  const found = await get('/api/playground/choices', signal);
  const open = (asked) => {
    const words = new URLSearchParams();
    for (const [name, value] of Object.entries(asked)) if (value !== '' && value !== undefined) words.set(name, value);
    go(`#/playground?${words}`);
  };
  const systems = select(found.systems.map((s) => [s.id, `${s.name} — ${s.problem.replaceAll('_', ' ')}`]), 'raft');
  const world = h('input', { type: 'text', placeholder: 'the problem’s own', list: 'worlds', autocomplete: 'off', spellcheck: 'false' });
  const seed = h('input', { type: 'number', min: '0', value: '7' });
  const send = (event) => {
    event.preventDefault();
    open({ system: systems.value, world: world.value.trim(), seed: seed.value });
  };
  fill(main, h('h1', {}, 'Playground'),
    h('p', { class: 'lead' }, 'Watch a distributed system at work, stop it at any moment, break a machine or a link by hand, and see what comes of it. Go back, try another future, and keep what you found as a test.'),
    h('div', { class: 'presets' }, PRESETS.filter((each) => found.systems.some((s) => s.id === each.system)).map((each) => h('button', { type: 'button', class: 'preset card', onclick: () => open({ system: each.system, world: each.world, seed: each.seed }) },
      h('b', {}, each.title), h('span', { class: 'soft' }, each.says)))),
    h('h2', {}, 'Or any other system'),
    h('form', { class: 'grid chooser', onsubmit: send }, field('System', systems), field('World', world, 'a name such as lan:7 or wan:10'), field('Seed', seed, 'equal seeds, equal runs'),
      h('div', { class: 'field' }, h('label', {}, '\u00a0'), h('button', { type: 'submit', class: 'primary' }, 'Open')),
      h('datalist', { id: 'worlds' }, found.worlds.map((each) => h('option', { value: each.name }, each.says)))));
}

// -- the ground

class Ground {
  constructor(main, room, signal) {
    this.main = main;
    this.room = room;
    this.signal = signal;
    this.branch = room.tree[room.tree.length - 1].id;
    this.at = 0;
    this.colours = new Colours();
    this.scenes = new Latest(signal);
    this.films = new Latest(signal);
    this.film = { from: 1, until: 0, arrows: [], methods: [], usual: 0.001 };
    this.picked = null;
    this.playing = false;
    this.node = null;
  }

  url(what, params = {}) {
    const words = new URLSearchParams({ branch: this.branch, ...params });
    return `/api/playground/${this.room.id}/${what}?${words}`;
  }

  // A time of this run to as many digits as tell its events apart.
  exact(at) { return time(at, Math.max(this.end * 2e-6, 1e-9)); }

  get end() { return this.room.ends_s[this.branch] || 1; }

  async begin(at) {
    this.stage = new Stage({
      size: this.room.size, signal: this.signal, colours: this.colours, picked: () => this.node,
      onNode: (node, x, y) => this.nodeMenu(node, x, y), onLink: (a, b, x, y) => this.linkMenu(a, b, x, y), onCut: (a, b) => this.edit('cut', [a, b]),
    });
    this.strip = new Strip({ signal: this.signal, onTime: (to) => { this.stop(); this.go(to); } });
    this.diagram = new SpaceTime({
      signal: this.signal, colours: this.colours, until: this.end, lanes: 28,
      load: (params) => { params.set('branch', this.branch); return get(`/api/playground/${this.room.id}/diagram?${params}`, this.signal); },
      onCursor: (to) => { this.stop(); this.go(to); }, onNode: (node) => { if (node < this.room.size) this.pick(node); },
      onWindow: (from, until) => { this.strip.window = [from, until]; this.strip.draw(); },
      says: (node) => this.says(node),
    });
    this.layout();
    this.main.addEventListener('keydown', (event) => this.key(event), { signal: this.signal });
    this.diagram.end = this.end;
    this.main.addEventListener('shown', () => { this.diagram.draw(); this.strip.draw(); this.stage.show(this.scene); }, { signal: this.signal, once: true });
    await this.refresh();
    const from = at || await this.opening();
    // Wide enough for some rounds of talk, narrow enough that messages lean.
    const span = Math.min(this.end, Math.max(this.film.usual * 70, this.end / 1000));
    this.diagram.show(from - span * 0.35, from + span * 0.65);
    this.go(from);
  }

  // Where one first looks: a little into the run, when the system has come to itself and speaks.
  async opening() {
    const { next } = await get(this.url('step', { at: digits(this.end * 0.25) }), this.signal);
    return next ? next.time_s : 0;
  }

  layout() {
    this.clock = h('output', { class: 'clock' });
    this.playButton = h('button', { type: 'button', class: 'primary play', onclick: () => this.toggle() });
    this.speed = select(SPEEDS, '0.4', { 'aria-label': 'Speed' });
    this.tree = h('div', { class: 'tree' });
    this.edits = h('div', {});
    this.verdict = h('div', { class: 'verdict', 'aria-live': 'polite' });
    this.story = h('div', { class: 'story' });
    this.warning = h('p', { class: 'warning', hidden: true });
    const button = (text, label, act, kind) => h('button', { type: 'button', title: label, 'aria-label': label, class: kind, onclick: act }, text);
    fill(this.playButton, icon('play'), 'Play');
    fill(this.main,
      h('header', { class: 'ground-head' },
        h('div', {}, h('p', { class: 'over' }, h('a', { href: '#/playground' }, 'Playground')), h('h1', {}, this.room.title, h('span', { class: 'soft on' }, ` on ${this.room.problem.replaceAll('_', ' ')}`)),
          h('p', { class: 'meta' }, `${this.room.size.toLocaleString('en-GB')} nodes`, h('span', {}, this.room.world), h('span', {}, `seed ${this.room.seed}`))),
        h('div', { class: 'row' }, button('Fork here', 'Try another future from this moment', () => this.fork(), 'fork'), button('Compare branches', 'Two branches side by side', () => this.compare(), 'compare'), button('Save as a test', 'A test that replays exactly this', () => this.save(), 'save primary'))),
      h('div', { class: 'ground' },
        h('section', { class: 'theatre', 'aria-label': 'The run' }, this.menuPlace(), this.warning,
          h('div', { class: 'transport', role: 'toolbar', 'aria-label': 'Time' },
            button(icon('rewind'), 'Rewind to the beginning', () => { this.stop(); this.go(0); }), button(icon('back'), 'Back to the last event', () => this.step(true), 'back'), this.playButton, button(icon('next'), 'On to the next event', () => this.step(false), 'next'),
            this.clock, h('span', { class: 'room' }), h('label', { class: 'choice' }, h('span', { class: 'soft' }, 'speed'), this.speed)),
          this.strip.element, h('div', { class: 'card flat' }, this.diagram.element)),
        h('aside', { class: 'beside' }, h('section', { class: 'card' }, h('h2', {}, 'What the checker says'), this.verdict),
          h('section', { class: 'card' }, h('h2', {}, 'Branches'), this.tree, this.edits), h('section', { class: 'card' }, this.story))));
    this.drawStory();
  }

  menuPlace() {
    this.menu = h('div', { class: 'menu', hidden: true, role: 'menu' });
    this.stage.element.append(this.menu);
    document.addEventListener('pointerdown', (event) => { if (!this.menu.contains(event.target)) this.closeMenu(); }, { signal: this.signal });
    this.advice = this.room.size <= 36 ? 'Click a node or a link. Drag from one node to another to cut their link.' : 'Each square is a node. Click one to break it; drag from one to another to cut their link.';
    this.hint = h('p', { class: 'hint soft' }, this.advice);
    return h('div', { class: 'card flat stage-card' }, this.stage.element, this.hint);
  }

  key(event) {
    if (event.target.closest('input, select, textarea, [role=menu], dialog')) return;
    if (event.key === ' ' && !event.target.closest('button, [role=button]')) { event.preventDefault(); this.toggle(); }
    else if (event.key === '.' || event.key === ',') this.step(event.key === ',');
    else if (event.key === 'f') this.fork();
    else if (event.key === 'Escape') this.closeMenu();
  }

  // -- time

  go(to, words) {
    this.at = Math.max(0, Math.min(to, this.end));
    fill(this.hint, words || this.advice);
    this.drawTime(true);
    this.ask();
  }

  drawTime(follow) {
    this.strip.at = this.at;
    this.strip.draw();
    this.diagram.setCursor(this.at, follow);
    fill(this.clock, h('b', {}, clock(this.at, this.end)), h('span', { class: 'soft' }, ` of ${time(this.end)}`));
    this.fly();
  }

  ask() {
    this.scenes.ask(() => get(this.url('at', { at: digits(this.at) }), this.signal), (scene) => { this.scene = scene; this.drawScene(); },
      (failure) => note(failure.message, true));
  }

  async refresh() {
    this.scene = await get(this.url('at', { at: digits(this.at) }), this.signal);
    this.strip.end = this.end;
    this.diagram.end = this.end;
    if (this.diagram.until > this.end) this.diagram.show(this.diagram.from, this.diagram.until);
    this.film = { from: 1, until: 0, arrows: [], methods: [], usual: this.film.usual };
    const whole = await get(this.url('diagram', { lanes: '1', bins: '200' }), this.signal).catch(() => null);
    if (whole) { this.strip.heat = overall(whole); this.film.usual = whole.usual_s; }
    this.drawTree();
    this.drawScene();
    this.drawTime(true);
    this.diagram.reload();
  }

  // The messages around the moment, for the stage.
  fly() {
    const film = this.film;
    const ahead = film.usual * 30;
    if (this.at >= film.from && this.at <= film.until) {
      this.stage.fly(film.arrows, film.methods, this.at, film.usual);
      if (this.at + ahead / 3 <= film.until || film.until >= this.end) return;
    }
    const from = Math.max(0, this.at - film.usual * 8);
    const until = Math.min(this.end, this.at + ahead + 1e-6);
    if (until <= from || this.room.size > 2000) return;
    this.films.ask(() => get(this.url('diagram', { from: digits(from), until: digits(until), lanes: '40' }), this.signal), (view) => {
      if (view.folded) return;
      this.film = { from: view.from_s, until: view.until_s, arrows: view.arrows, methods: view.methods, usual: view.usual_s };
      this.stage.fly(view.arrows, view.methods, this.at, view.usual_s);
    });
  }

  toggle() { if (this.playing) this.stop(); else this.play(); }

  stop() {
    this.playing = false;
    fill(this.playButton, icon('play'), 'Play');
  }

  play() {
    if (this.at >= this.end - 1e-9) this.at = 0;
    this.playing = true;
    fill(this.playButton, icon('pause'), 'Stop');
    let last = performance.now();
    let asked = 0;
    const frame = (now) => {
      if (!this.playing || this.signal.aborted) return;
      const past = Math.min(0.1, (now - last) / 1000);
      last = now;
      this.at = Math.min(this.end, this.at + this.pace(past));
      this.drawTime(true);
      if (now - asked > 220) { asked = now; this.ask(); }
      if (this.at >= this.end) { this.stop(); this.ask(); return; }
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  // So that one sees messages fly, time goes slowly while there are any, and quickly while not.
  pace(past) {
    const { arrows, usual, until } = this.film;
    const slow = (usual / Number(this.speed.value)) * past;
    if (this.room.size > 2000 || this.film.until < this.film.from) return (this.end / 20) * past;
    let next = Math.min(until, this.end);
    for (const [sent, got] of arrows) {
      if (sent <= this.at && got > this.at) return slow;
      if (sent > this.at && sent < next) next = sent;
    }
    return Math.max(slow, Math.min(next - this.at, (this.end / 40) * past) + 1e-9);
  }

  // The next or last event of all, or of one node.
  async step(back, node) {
    this.stop();
    const params = { at: digits(this.at), back: back ? '1' : '0' };
    if (node !== undefined) params.node = String(node);
    try {
      const { next } = await get(this.url('step', params), this.signal);
      if (!next) { fill(this.hint, back ? 'Nothing happened before this.' : 'Nothing happens after this: the run is over.'); return; }
      this.go(next.time_s, [h('b', {}, this.exact(next.time_s)), ` ${next.node < 0 ? 'the network' : next.node >= this.room.size ? 'a client' : `node ${next.node}`}: ${next.what}`]);
    } catch (failure) { note(failure.message, true); }
  }

  // -- edits

  async change(what, body, told) {
    this.closeMenu();
    try {
      const found = await post(`/api/playground/${this.room.id}/${what}`, body, this.signal);
      this.room = { ...this.room, tree: found.tree, ends_s: found.ends_s };
      if (told) note(told(found));
      return found;
    } catch (failure) {
      if (failure.name !== 'AbortError') note(failure.message, true);
      return null;
    }
  }

  async edit(action, nodes, value) {
    this.stop();
    const body = { branch: this.branch, at_s: Number(digits(this.at)), action, nodes };
    if (value !== undefined) body.value = value;
    const found = await this.change('edit', body, (answer) => `At ${time(this.at)} ${answer.words}.`);
    if (found) await this.refresh();
  }

  state(node) { return this.scene?.nodes.find((each) => each.id === node) || { id: node, state: 'up' }; }

  mine(kind, node) { return (this.scene?.standing || []).some((each) => each.action === kind && each.nodes.includes(node)); }

  nodeMenu(node, x, y) {
    this.pick(node);
    const one = this.state(node);
    const item = (text, act, off) => !off && h('button', { type: 'button', role: 'menuitem', onclick: act }, text);
    const down = one.state === 'down';
    this.openMenu(x, y, h('p', {}, h('b', {}, `node ${node}`), h('span', { class: 'soft' }, ` ${this.stage.says(one).join(', ')}`)),
      item('✕ Crash', () => this.edit('crash', [node]), down), item('▸ Start again', () => this.edit('restart', [node]), !this.mine('crash', node)),
      item('❚❚ Pause', () => this.edit('pause', [node]), down || one.state === 'paused'), item('▸ Go on', () => this.edit('resume', [node]), !this.mine('pause', node)),
      item('◔ Slow, 10 times', () => this.edit('slow', [node], 10), down || one.slow), item('▸ Quick again', () => this.edit('quicken', [node]), !this.mine('slow', node)),
      item('⊘ Cut off from all', () => this.edit('isolate', [node]), one.alone), item('▸ Join again', () => this.edit('rejoin', [node]), !this.mine('isolate', node)));
  }

  linkMenu(a, b, x, y) {
    const item = (text, act, off) => !off && h('button', { type: 'button', role: 'menuitem', onclick: act }, text);
    const on = (kind) => (this.scene?.standing || []).some((each) => each.action === kind && each.nodes[0] === a && each.nodes[1] === b);
    this.openMenu(x, y, h('p', {}, h('b', {}, `link ${a} – ${b}`)),
      item('✕ Cut', () => this.edit('cut', [a, b]), on('cut')), item('▸ Heal', () => this.edit('heal', [a, b]), !on('cut')),
      item('◔ Late by 50 ms', () => this.edit('lag', [a, b], 0.05), on('lag')), item('▸ Quick again', () => this.edit('hasten', [a, b]), !on('lag')));
  }

  openMenu(x, y, ...items) {
    this.stop();
    fill(this.menu, items);
    this.menu.hidden = false;
    const box = this.stage.element.getBoundingClientRect();
    this.menu.style.setProperty('left', `${Math.max(6, Math.min(x + 10, box.width - this.menu.offsetWidth - 6))}px`);
    this.menu.style.setProperty('top', `${Math.max(6, Math.min(y - 10, box.height - this.menu.offsetHeight - 6))}px`);
    const buttons = [...this.menu.querySelectorAll('button')];
    buttons[0]?.focus({ preventScroll: true });
    this.menu.onkeydown = (event) => {
      const at = buttons.indexOf(document.activeElement);
      if (event.key === 'ArrowDown') buttons[(at + 1) % buttons.length].focus();
      else if (event.key === 'ArrowUp') buttons[(at + buttons.length - 1) % buttons.length].focus();
      else if (event.key === 'Escape') this.closeMenu();
      else return;
      event.preventDefault();
      event.stopPropagation();
    };
  }

  closeMenu() {
    if (!this.menu || this.menu.hidden) return;
    const had = this.menu.contains(document.activeElement);
    this.menu.hidden = true;
    // The keyboard goes on where it was: at the node, or else at the time.
    if (had) (this.stage.element.querySelector(`[data-node="${this.node}"]`) || this.playButton).focus({ preventScroll: true });
  }

  // -- branches

  now() { return this.room.tree.find((each) => each.id === this.branch); }

  async fork() {
    this.stop();
    const found = await this.change('fork', { branch: this.branch, at_s: Number(digits(this.at)) }, () => `Another future begins at ${time(this.at)}. What you do now happens only in it.`);
    if (!found) return;
    this.branch = found.branch;
    await this.refresh();
  }

  async switch(branch) {
    this.stop();
    this.branch = branch;
    this.at = Math.min(this.at, this.end);
    await this.refresh();
    this.go(this.at);
  }

  drawTree() {
    const depth = (branch) => (branch.parent ? 1 + depth(this.room.tree.find((each) => each.id === branch.parent) || {}) : 0);
    const ordered = [];
    const visit = (parent) => this.room.tree.filter((each) => each.parent === parent).forEach((each) => { ordered.push(each); visit(each.id); });
    visit('');
    fill(this.tree, h('ul', { class: 'branches' }, ordered.map((each) => h('li', { class: `deep${Math.min(6, depth(each))}` },
      h('button', { type: 'button', class: 'branch', 'data-branch': each.id, 'aria-current': each.id === this.branch ? 'true' : null, onclick: () => this.switch(each.id) },
        h('span', { 'aria-hidden': 'true', class: 'twig' }, each.parent ? '└' : '●'), h('b', {}, each.title),
        h('small', {}, each.parent ? `forked at ${time(each.from_s)}` : 'the run by itself', each.edits.length ? `, ${each.edits.length} edit${each.edits.length === 1 ? '' : 's'}` : '')),
      each.parent && h('button', { type: 'button', class: 'gone', title: 'Remove this branch', 'aria-label': `Remove ${each.title}`, onclick: () => this.removeBranch(each) }, '×')))));
    const edits = this.now().edits;
    this.strip.edits = edits.map((edit) => ({ at_s: edit.at_s, ends: Boolean(ENDS[edit.action]) }));
    fill(this.edits, h('h3', {}, 'What you did here'), edits.length ? h('ol', { class: 'edits' }, edits.map((edit, place) => h('li', {},
      h('button', { type: 'button', class: 'when', title: 'Go there', onclick: () => this.go(edit.at_s) }, time(edit.at_s)), h('span', {}, edit.words),
      h('button', { type: 'button', class: 'gone', title: 'Take this out', 'aria-label': `Take out: ${edit.words}`, onclick: () => this.takeOut(place) }, '×'))))
      : empty('Nothing yet. Click a node to crash it.'));
    this.warning.hidden = !this.now().warning;
    fill(this.warning, this.now().warning);
    this.strip.draw();
  }

  async takeOut(place) { if (await this.change('undo', { branch: this.branch, place }, (answer) => `Taken out: ${answer.words}.`)) await this.refresh(); }

  async removeBranch(branch) {
    if (!await this.change('remove', { branch: branch.id }, () => `${branch.title} is gone.`)) return;
    if (this.branch === branch.id) await this.switch(branch.parent);
    else this.drawTree();
  }

  // -- what is seen

  says(node) {
    if (node === undefined || node >= this.room.size) return '';
    const one = this.scene?.nodes.find((each) => each.id === node);
    return one ? this.stage.says(one).join(', ') : '';
  }

  drawScene() {
    this.stage.show(this.scene);
    this.drawVerdict();
    if (this.node !== null) this.loadStory();
    this.diagram.draw();
  }

  drawVerdict() {
    const { violations, final_violations: final, counts, final_metrics: metrics, failure } = this.scene;
    const list = (found) => h('ul', { class: 'found' }, found.map((each) => h('li', {}, h('b', { class: 'bad' }, each.words), each.count > 1 && h('span', { class: 'soft' }, ` ×${each.count}`),
      each.time_s !== null && each.time_s !== undefined && h('button', { type: 'button', class: 'when', onclick: () => this.go(each.time_s) }, time(each.time_s)), h('span', { class: 'sub' }, each.message))));
    const line = (when, found) => [h('p', { class: 'so-far' }, h('span', { class: `badge ${found.length ? 'bad' : 'good'}` }, h('span', { class: 'dot', 'aria-hidden': 'true' }, found.length ? '○' : '●'), when), h('span', {}, found.length ? 'this is wrong:' : 'nothing is wrong')), found.length ? list(found) : null];
    const facts = [['messages', counts.messages], ['on their way', counts.flying], ['lost', counts.lost], ['nodes down', counts.down]];
    fill(this.verdict,
      line('up to now', violations), this.scene.at_s < this.end && line('by the end', final),
      failure && h('p', { class: 'bad' }, failure),
      h('ul', { class: 'facts-row' }, facts.map(([name, value]) => h('li', {}, h('b', {}, Number(value).toLocaleString('en-GB')), h('span', {}, name)))),
      metrics.length && h('details', {}, h('summary', {}, 'Measured at the end'), h('dl', { class: 'facts' }, metrics.map((each) => [h('dt', { title: each.says }, each.name.replaceAll('_', ' ')), h('dd', {}, each.text)]))));
  }

  pick(node) {
    this.node = node;
    this.diagram.pins = this.room.size > 28 ? [node] : [];
    this.loadStory();
    this.stage.show(this.scene);
    if (this.room.size > 28) this.diagram.reload();
  }

  loadStory() {
    this.stories = this.stories || new Latest(this.signal);
    this.stories.ask(() => get(this.url('story', { at: digits(this.at), node: String(this.node) }), this.signal), (found) => this.drawStory(found));
  }

  drawStory(found) {
    if (!found) { fill(this.story, h('h2', {}, 'A node’s story'), h('p', { class: 'soft' }, 'Click a node to see what it knows and what happened to it.')); return; }
    const fields = Object.entries(found.fields);
    fill(this.story, h('h2', {}, found.name, ' ', h('span', { class: 'soft' }, `${found.part}, ${found.state}`)),
      h('div', { class: 'row' }, h('button', { type: 'button', class: 'small', onclick: () => this.step(true, found.node) }, '◂ its last'), h('button', { type: 'button', class: 'small', onclick: () => this.step(false, found.node) }, 'its next ▸'),
        h('button', { type: 'button', class: 'small', onclick: () => { this.node = null; this.drawStory(); this.stage.show(this.scene); } }, 'close')),
      fields.length ? h('details', { open: true }, h('summary', {}, 'What it holds now'), h('dl', { class: 'facts held' }, fields.map(([name, value]) => [h('dt', {}, name.replaceAll('_', ' ')), h('dd', {}, value)]))) : null,
      h('h3', {}, 'What happened to it'),
      found.past.length ? h('ol', { class: 'past' }, found.past.map((each) => h('li', {}, h('button', { type: 'button', class: 'when', onclick: () => this.go(each.time_s) }, this.exact(each.time_s)), h('span', {}, each.words)))) : empty('Nothing yet.'));
  }

  // -- side by side, and keeping

  dialog(title, ...children) {
    const element = h('dialog', { class: 'sheet', 'aria-label': title }, h('header', {}, h('h2', {}, title), h('button', { type: 'button', class: 'small', onclick: () => element.close() }, 'Close')), children);
    element.addEventListener('close', () => element.remove());
    this.main.append(element);
    element.showModal();
    return element;
  }

  async compare() {
    this.stop();
    if (this.room.tree.length < 2) { note('There is one branch only. Fork it first, then do something else in the fork.', true); return; }
    const names = this.room.tree.map((each) => [each.id, each.title]);
    const other = this.branch === 'main' ? names[names.length - 1][0] : (this.now().parent || 'main');
    const a = select(names, other, { 'aria-label': 'Left' });
    const b = select(names, this.branch, { 'aria-label': 'Right' });
    const place = h('div', {});
    const draw = async () => {
      try {
        const found = await get(`/api/playground/${this.room.id}/compare?a=${a.value}&b=${b.value}`, this.signal);
        await this.drawCompare(place, found);
      } catch (failure) { note(failure.message, true); }
    };
    a.addEventListener('change', draw);
    b.addEventListener('change', draw);
    this.dialog('Side by side', h('div', { class: 'row versus' }, a, h('span', { class: 'soft' }, 'against'), b), place);
    await draw();
  }

  async drawCompare(place, found) {
    const title = (id) => this.room.tree.find((each) => each.id === id).title;
    const when = found.first ? found.first.time_s : 0;
    const side = (id) => {
      const one = new SpaceTime({ signal: this.signal, colours: this.colours, until: this.room.ends_s[id] || 1, lanes: 14, label: `Diagram of ${title(id)}`,
        load: (params) => { params.set('branch', id); return get(`/api/playground/${this.room.id}/diagram?${params}`, this.signal); } });
      one.end = this.room.ends_s[id] || 1;
      one.cursor = found.first ? when : null;
      const span = Math.min(one.end, Math.max(this.film.usual * 30, one.end / 1000));
      one.show(when - span * 0.25, when + span * 0.75);
      return h('div', { class: 'side-of' }, h('h3', {}, title(id)), found.first && h('p', { class: 'soft' }, (id === found.a ? found.first.a : found.first.b) || 'nothing more happens'), one.element);
    };
    const metric = (each, which) => {
      if (!each[which]) return '–';
      // Two figures that differ must not look the same.
      return each.a && each.b && each.a.text === each.b.text && each[which].value !== null ? String(Number(each[which].value.toPrecision(7))) : each[which].text;
    };
    const better = (each) => {
      if (!each.a || !each.b || !each.a.better || each.a.value === null || each.b.value === null) return '';
      return (each.a.value < each.b.value) === (each.a.better === 'lower') ? 'a' : 'b';
    };
    fill(place, h('p', { class: 'lead' }, found.words),
      found.first && h('p', { class: 'soft' }, `The first event that differs is number ${found.first.event === null ? '–' : found.first.event.toLocaleString('en-GB')}, at ${time(when)}:`),
      h('div', { class: 'sides' }, side(found.a), side(found.b)),
      found.metrics.length ? h('table', { class: 'differences' }, h('thead', {}, h('tr', {}, h('th', {}, 'what differs at the end'), h('th', { class: 'right' }, title(found.a)), h('th', { class: 'right' }, title(found.b)))),
        h('tbody', {}, found.metrics.map((each) => h('tr', {}, h('td', {}, each.name.replaceAll('_', ' '), h('span', { class: 'sub' }, (each.a || each.b).says)), h('td', { class: better(each) === 'a' ? 'right good' : 'right' }, metric(each, 'a')), h('td', { class: better(each) === 'b' ? 'right good' : 'right' }, metric(each, 'b')))),
          h('tr', {}, h('td', {}, 'messages'), h('td', { class: 'right' }, found.messages[0].toLocaleString('en-GB')), h('td', { class: 'right' }, found.messages[1].toLocaleString('en-GB'))))) : null,
      [['a', found.violations.a], ['b', found.violations.b]].map(([which, kinds]) => kinds.length > 0 && h('p', {}, badge('failed'), ` only in ${title(found[which])}: ${kinds.join(', ').replaceAll('_', ' ')}`)));
  }

  async save() {
    this.stop();
    try {
      const found = await get(this.url('test'), this.signal);
      const link = h('a', { class: 'button primary', href: URL.createObjectURL(new Blob([found.source], { type: 'text/x-python' })), download: found.file }, `Download ${found.file}`);
      const copy = h('button', { type: 'button', onclick: async () => { await navigator.clipboard.writeText(found.source); note('Copied.'); } }, 'Copy');
      this.dialog('Save as a test', h('p', {}, 'This file replays the branch exactly: the same system, world, faults and seed. It fails when a fault is taken out or the system behaves otherwise.'),
        h('div', { class: 'row' }, link, copy, h('code', {}, found.command)), h('pre', { class: 'source', tabindex: '0' }, h('code', {}, found.source)));
    } catch (failure) { note(failure.message, true); }
  }
}

// -- small things

function clock(at, end) {
  const digitsOf = Math.max(3, Math.min(9, Math.ceil(-Math.log10(end)) + 5));
  return `${at.toFixed(digitsOf)} s`;
}

// How many messages in each bin of the whole run, whatever the lanes.
function overall(view) {
  if (view.folded) return view.heat.length ? view.heat[0].map((_, i) => view.heat.reduce((sum, row) => sum + row[i], 0)) : [];
  const found = new Array(200).fill(0);
  for (const [sent] of view.arrows) found[Math.min(199, Math.floor((sent / view.end_s) * 200))] += 1;
  return found;
}
