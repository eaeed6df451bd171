// SPDX-License-Identifier: MIT
/** The figures of an answer: four numbers and two charts. */

import { $, count, fixed } from './nodes.js';

const NUM_LAUNCHES = 60; // Shown of the latest.
const WINDOW_MS = 2000; // The speed of a running answer is that of these.

/** Shows what is at the side of the page. */
export function draw(answer) {
  const rate = answer.rate(answer.ended ? Infinity : WINDOW_MS);
  const share = (100 * answer.numAccepted) / answer.numDrafted;
  const depth = answer.numDrafted / answer.numRounds;
  $('rate').textContent = fixed(rate, 1);
  $('per-round').textContent = fixed(answer.ids.length / answer.numRounds, 2);
  $('depth').textContent = fixed(depth, 2);
  $('accepted').textContent =
    answer.numDrafted ? `${fixed(share, 0)} %` : '–';
  drawDepths(answer.launches.slice(-NUM_LAUNCHES), answer.launches.length);
  drawSizes(answer.sizes);
}

function shape(tag, attributes, text) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) {
    made.setAttribute(name, value);
  }
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Nothing has come yet. */
export function clear() {
  chart($('depths'), 'Nothing yet', []);
  chart($('sizes'), 'Nothing yet', []);
}

function chart(svg, label, shapes) {
  svg.setAttribute('viewBox', '0 0 300 80');
  svg.setAttribute('aria-label', label);
  const ground = shape('line', { x1: 0, x2: 300, y1: 64.5, y2: 64.5 });
  svg.replaceChildren(ground, ...shapes);
}

function drawDepths(launches, numLaunches) {
  const most = Math.max(1, ...launches.map(([offered]) => Math.ceil(offered)));
  const wide = 276 / NUM_LAUNCHES;
  const bar = (kind, i, value) => {
    const height = (value / most) * 56;
    const x = 24 + i * wide + 0.5;
    const y = 64 - height;
    return shape('rect', { class: kind, x, y, width: wide - 1, height });
  };
  const shapes = launches.flatMap(([offered, kept], i) => [
    bar('offered', i, offered),
    bar('kept', i, kept),
  ]);
  shapes.push(shape('text', { x: 0, y: 14 }, most));
  shapes.push(shape('text', { x: 0, y: 62 }, 0));
  const latest = launches.at(-1)?.[0] ?? 0;
  const label = `Latest launch: ${fixed(latest, 1)} drafts verified a round;` +
    ` ${count(numLaunches, 'launch').replace(/hs$/, 'hes')} so far`;
  chart($('depths'), label, shapes);
}

function drawSizes(sizes) {
  const rounds = Array.from(sizes, (number) => number ?? 0).slice(1);
  const most = Math.max(1, ...rounds);
  const wide = 300 / Math.max(rounds.length, 6);
  const shapes = rounds.flatMap((number, i) => {
    const height = (number / most) * 46;
    const middle = (i + 0.5) * wide;
    const place = { x: middle, 'text-anchor': 'middle' };
    return [
      shape('rect', {
        class: 'kept', x: i * wide + 6, y: 64 - height, width: wide - 12, height,
      }),
      shape('text', { ...place, y: 60 - height }, number || ''),
      shape('text', { ...place, y: 77 }, i + 1),
    ];
  });
  const told = rounds.map((number, i) =>
    `${count(i + 1, 'token')}: ${count(number, 'round')}`);
  chart($('sizes'), told.join(', ') || 'Nothing yet', shapes);
}
