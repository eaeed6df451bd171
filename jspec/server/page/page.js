// SPDX-License-Identifier: MIT
/**
 * Asks /v1/chat/completions, and shows how every token of an answer came.
 *
 *   events --> Answer.take --> draw, once a frame
 *   status, once a second --> the head of the page
 *
 * What models and servers say goes in as text, never as HTML.
 */

import { Answer } from './answer.js';
import * as charts from './charts.js';
import { $, count, fixed, node } from './nodes.js';
import * as server from './server.js';

const KEY = 'jspec-key';

let history = []; // Messages of this chat.
let models = [];
let shown = null; // The answer whose figures are at the side.
let running = null; // Ends the answers that come, if any.
let changed = new Set(); // Answers to draw in the next frame.

const call = (path, options) => server.call(path, $('key').value, options);

function numberIn(id) {
  return $(id).value === '' ? undefined : Number($(id).value);
}

// --- drawing, once a frame

function redraw(answer) {
  if (!changed.size) requestAnimationFrame(drawAll);
  changed.add(answer);
}

function drawAll() {
  const log = $('log');
  const below = log.scrollHeight - log.scrollTop - log.clientHeight;
  const answers = changed;
  changed = new Set();
  for (const answer of answers) answer.draw();
  if (answers.has(shown)) charts.draw(shown);
  // Whoever scrolled up to read stays there.
  if (below < 80) log.scrollTop = log.scrollHeight;
}

// --- asking

function wanted(messages, seed, isPlain) {
  const system = $('system').value.trim();
  return {
    model: $('model').value || undefined,
    messages: [
      ...(system ? [{ role: 'system', content: system }] : []),
      ...messages,
    ],
    stream: true,
    temperature: numberIn('temperature'),
    max_tokens: numberIn('tokens'),
    seed,
    speculative: {
      details: true,
      method: isPlain ? 'none' : $('drafter').value || undefined,
      max_draft_tokens: isPlain ? undefined : numberIn('drafts'),
      depth_policy: isPlain ? undefined : $('policy').value || undefined,
    },
  };
}

/** Fills an answer. */
async function fill(answer, body) {
  answer.asked = performance.now();
  redraw(answer);
  try {
    const response = await call('v1/chat/completions', {
      method: 'POST',
      body: JSON.stringify(body),
      signal: running.signal,
    });
    for await (const event of server.events(response)) {
      if (event.error) throw new Error(event.error.message);
      event.choices.forEach((choice) => answer.take(choice));
    }
  } catch (error) {
    const isStopped = error.name === 'AbortError';
    if (!isStopped) fail(error);
    answer.end(isStopped ? 'stopped' : 'failed');
  }
}

function fail(error) {
  $('problem').textContent = error.message;
  if (error.status === 401) {
    $('settings').open = true;
    $('key').focus();
  }
}

async function ask() {
  const prompt = $('prompt').value.trim();
  if (running || !prompt) return;
  if (!$('options').checkValidity()) {
    $('settings').open = true;
    $('options').reportValidity();
    return;
  }
  begin();
  const messages = [...history, { role: 'user', content: prompt }];
  const seed = numberIn('seed') ?? Math.floor(Math.random() * 2 ** 32);
  const asked = node('div', { class: 'asked' }, prompt);
  const isPair = $('compare').checked;
  const answers = isPair
    ? [new Answer('With speculation', redraw), new Answer('Without', redraw)]
    : [new Answer('', redraw)];
  const boxes = answers.map((answer) => answer.box);
  const box = isPair
    ? node('div', { class: 'pair' }, node('div', { class: 'answers' }, ...boxes))
    : boxes[0];
  shown = answers[0];
  $('log').append(asked, box);
  $('log').scrollTop = $('log').scrollHeight;
  const fills = answers.map((answer, i) =>
    () => fill(answer, wanted(messages, seed, i === 1)));
  if ($('at-once').checked) {
    await Promise.all(fills.map((start) => start()));
  } else {
    for (const next of fills) if (!running.signal.aborted) await next();
  }
  answers.forEach((answer) => answer.end('stopped'));
  drawAll();
  const canCompare = isPair && answers.every(({ ids }) => ids.length);
  if (canCompare) box.append(verdict(...answers));
  finish(prompt, messages, answers, [asked, box]);
}

function begin() {
  running = new AbortController();
  $('problem').textContent = '';
  $('welcome').hidden = true;
  $('prompt').value = '';
  $('said').textContent = 'Answering';
  swap($('send'), $('stop'));
}

function finish(prompt, messages, answers, boxes) {
  running = null;
  swap($('stop'), $('send'));
  const [first] = answers;
  if (answers.every(({ ids, ended }) => !ids.length && ended === 'failed')) {
    boxes.forEach((box) => box.remove());
    $('prompt').value ||= prompt;
    return;
  }
  history = [...messages, { role: 'assistant', content: first.content }];
  const told = boxes[1].querySelector('.verdict')?.textContent;
  $('said').textContent = `${told ?? first.summary}. ${first.content}`;
  $('log').scrollTop = $('log').scrollHeight;
}

/** One button in the place of another, with its focus. */
function swap(from, to) {
  to.hidden = false;
  if (document.activeElement === from) to.focus();
  from.hidden = true;
}

/** Says how two answers compare, and marks where they part. */
function verdict(fast, plain) {
  const least = Math.min(fast.ids.length, plain.ids.length);
  let at = 0;
  while (at < least && fast.ids[at] === plain.ids[at]) at += 1;
  const areWhole = [fast, plain].every(({ ended }) =>
    ended === 'stop' || ended === 'length');
  const text = ({ texts }) => texts.join('');
  let said = `different from token ${at + 1} on`;
  let kind = 'other';
  if (areWhole && fast.ids.length === plain.ids.length && at === least &&
      text(fast) === text(plain)) {
    said = `identical, all ${count(at, 'token')}`;
    kind = 'same';
  } else if (!areWhole && at === least) {
    said = `identical as far as both go, ${count(at, 'token')}`;
    kind = 'same';
  } else {
    for (const { text } of [fast, plain]) {
      text.children[at]?.classList.add('differs');
    }
  }
  const ratio = fixed(fast.rate() / plain.rate(), 2);
  return node('p', { class: 'verdict' },
    `${ratio} times as fast · `, node('span', { class: kind }, said));
}

// --- the head of the page

async function readModels() {
  const response = await call('v1/models');
  models = (await response.json()).data;
  const chosen = $('model').value;
  $('model').replaceChildren(...models.map(({ id }) => new Option(id)));
  if (models.some(({ id }) => id === chosen)) $('model').value = chosen;
  readChoices();
}

function readChoices() {
  const model = models.find(({ id }) => id === $('model').value);
  offer($('drafter'), (model?.drafters ?? []).map((name) =>
    new Option(name === 'none' ? 'off' : name, name)));
  offer($('policy'), (model?.depth_policies ?? []).map((name) =>
    new Option(name, name)));
}

function offer(select, options) {
  const [first] = select.options;
  select.replaceChildren(first, ...options);
  first.selected = true;
}

let last = null; // Tokens and time of the status before.

async function readStatus() {
  try {
    const status = await (await call('v1/jspec/status')).json();
    if (!models.length) await readModels();
    tellLoad(status.status, status.status === 'ready' ? load(status) : '');
  } catch (error) {
    const isLocked = error.status === 401;
    tellLoad('broken', isLocked ? 'needs an API key' : 'not reachable');
  }
}

function load({ rows, running: busy, waiting, num_tokens: tokens }) {
  const now = performance.now();
  const rate = last && ((tokens - last[0]) * 1000) / (now - last[1]);
  last = [tokens, now];
  $('load-rate').textContent = rate > 0 ? `, ${fixed(rate, 0)} tokens/s` : '';
  return `${busy} of ${rows} running, ${waiting} waiting`;
}

function tellLoad(status, text) {
  if (status !== 'ready') $('load-rate').textContent = '';
  $('load').dataset.status = status;
  $('load-text').textContent = text || status;
}

async function watch() {
  if (!document.hidden) await readStatus();
  setTimeout(watch, 1000);
}

// --- what people do

$('ask').addEventListener('submit', (event) => {
  event.preventDefault();
  ask();
});
$('prompt').addEventListener('keydown', (event) => {
  // An input method ends a word with Enter, too.
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    ask();
  }
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape') running?.abort();
});
$('stop').addEventListener('click', () => running?.abort());
$('clear').addEventListener('click', () => {
  if (running) return;
  history = [];
  $('log').replaceChildren($('welcome'));
  $('welcome').hidden = false;
  $('problem').textContent = '';
  $('prompt').focus();
});
$('examples').addEventListener('click', (event) => {
  if (event.target.localName !== 'button') return;
  $('prompt').value = event.target.textContent.replace(/\s+/g, ' ').trim();
  ask();
});
$('options').addEventListener('submit', (event) => event.preventDefault());
$('model').addEventListener('change', readChoices);
$('coloured').addEventListener('change', () => {
  $('log').classList.toggle('uncoloured', !$('coloured').checked);
});
$('key').addEventListener('change', () => {
  sessionStorage.setItem(KEY, $('key').value);
  $('problem').textContent = '';
  readStatus();
});

$('key').value = sessionStorage.getItem(KEY) ?? '';
$('compare').checked = $('at-once').checked = false;
if (matchMedia('(max-width: 56rem)').matches) {
  $('rounds').open = $('settings').open = false;
}
charts.clear();
watch();
