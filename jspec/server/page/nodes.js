// SPDX-License-Identifier: MIT
/** Finds and makes parts of the page, and writes numbers. */

export const $ = (id) => document.getElementById(id);

export const fixed = (value, digits) =>
  Number.isFinite(value) ? value.toFixed(digits) : '–';

export const count = (number, noun) =>
  `${number} ${noun}${number === 1 ? '' : 's'}`;

export function node(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}
