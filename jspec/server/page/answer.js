// SPDX-License-Identifier: MIT
/**
 * One answer: what came of it, how fast, and its tokens on the page.
 *
 *   draft draft bonus | draft bonus | plain      3 rounds, of 3, 2 and 1 tokens
 *
 * What a model says goes in as text, never as HTML.
 */

import { count, fixed, node } from './nodes.js';

const NAMES = { draft: 'accepted draft', bonus: 'bonus', plain: 'plain' };

export class Answer {
  /** Begins one; `onChange` hears of it whenever there is more to draw. */
  constructor(title, onChange) {
    this.onChange = onChange;
    this.text = node('div', { class: 'text', 'aria-busy': 'true' });
    this.figures = node('p', { class: 'figures' });
    this.box = node('article', { class: 'answer' }, this.text, this.figures);
    if (title) this.box.prepend(node('h2', {}, title));
    this.content = '';
    this.ids = [];
    this.origins = [];
    this.roundOf = [];
    this.texts = [];
    this.numDrawn = 0;
    this.numRounds = this.numDrafted = this.numAccepted = 0;
    this.launches = []; // Drafts verified and kept, a round.
    this.sizes = []; // How many rounds brought 0, 1, 2, ... tokens.
    this.size = 0; // Of the round that goes on.
    this.round = 1;
    this.times = []; // Milliseconds, and tokens by then.
    this.asked = performance.now();
    this.drafter = this.why = undefined; // Who drafts, and why.
    this.ended = null; // 'stop', 'length', 'stopped' or 'failed'.
  }

  /** Takes in a choice of an event. */
  take(choice) {
    const told = choice.speculative;
    this.content += choice.delta.content ?? '';
    this.drafter = told.drafter;
    this.why = told.why;
    this.texts.push(...told.texts);
    told.token_ids.forEach((id, i) => this.takeToken(id, told.origins[i]));
    const numKept = told.origins.filter((origin) => origin === 'draft').length;
    this.numRounds += told.rounds;
    this.numDrafted += told.drafted;
    this.numAccepted += numKept;
    if (told.rounds) {
      this.launches.push([told.drafted / told.rounds, numKept / told.rounds]);
    }
    if (told.token_ids.length) {
      this.times.push([performance.now(), this.ids.length]);
    }
    if (choice.finish_reason) this.end(choice.finish_reason);
    this.onChange(this);
  }

  /** A round ends with what the model adds, or with a plain token. */
  takeToken(id, origin) {
    this.ids.push(id);
    this.origins.push(origin);
    this.roundOf.push(this.round);
    this.size += 1;
    if (origin !== 'draft') this.endRound();
  }

  endRound() {
    this.sizes[this.size] = (this.sizes[this.size] ?? 0) + 1;
    this.round += 1;
    this.size = 0;
  }

  end(reason) {
    if (!this.ended && this.size) this.endRound(); // Cut among its drafts.
    this.ended ??= reason;
    this.text.setAttribute('aria-busy', 'false');
    this.onChange(this);
  }

  /** Tokens a second, behind the first that came; of all or of the latest. */
  rate(windowMs = Infinity) {
    const last = this.times.at(-1);
    if (!last) return NaN;
    const first = this.times.find(([time]) => time >= last[0] - windowMs);
    return ((last[1] - first[1]) * 1000) / (last[0] - first[0]);
  }

  get summary() {
    const parts = [
      count(this.ids.length, 'token'),
      `${fixed(this.rate(), 1)} tokens/s`,
      `${fixed(this.ids.length / this.numRounds, 2)} a round`,
      `first after ${fixed(this.times[0]?.[0] - this.asked, 0)} ms`,
    ];
    if (this.drafter && this.drafter !== 'none') {
      parts.push(`drafter ${this.drafter}: ${this.why}`);
    }
    if (this.ended === 'length') parts.push('token limit');
    if (this.ended === 'stopped') parts.push('stopped');
    if (this.ended === 'failed') parts.push('failed');
    return parts.join(' · ');
  }

  draw() {
    const made = document.createDocumentFragment();
    for (; this.numDrawn < this.texts.length; this.numDrawn += 1) {
      const origin = this.origins[this.numDrawn];
      const title = `${NAMES[origin]}, round ${this.roundOf[this.numDrawn]}`;
      made.append(
        node('span', { class: origin, title }, this.texts[this.numDrawn]),
      );
    }
    this.text.append(made);
    this.figures.textContent = this.times.length || this.ended
      ? this.summary
      : 'waiting for the first token';
  }
}
