# SPDX-License-Identifier: MIT
"""Plain decoding with logit options, token by token, in plain numpy.

A toy language model (logits of the last two tokens), and what every option does
to the logits behind a prompt and an output, from its definition. Nothing here
shares code with jspec.
"""

import numpy as np

VOCAB = 12


def language(seed=0, scale=2.0):
  """Logits behind every pair of tokens, [V, V, V]."""
  rng = np.random.default_rng(seed)
  return (scale * rng.normal(size=(VOCAB,) * 3)).astype(np.float32)


def raw(table, tokens):
  """The model's logits behind `tokens`, two or more."""
  return table[tokens[-2], tokens[-1]]


def adjusted(z, prompt, output, options, stop_ids=()):
  """The logits that plain decoding takes its next token from."""
  z = z.astype(np.float32).copy()
  for token, value in options.logit_bias:
    z[token] += np.float32(value)
  r = np.float32(options.repetition_penalty)
  for token in {*prompt, *output}:
    z[token] = z[token] / r if z[token] > 0 else z[token] * r
  for token in set(output):
    count = np.float32(list(output).count(token))
    z[token] -= np.float32(options.frequency_penalty) * count
    z[token] -= np.float32(options.presence_penalty)
  if len(output) < options.min_tokens:
    z[list(stop_ids)] = -np.inf
  for word in options.bad_words:
    *before, last = word
    if not before or list(output)[-len(before) :] == before:
      z[last] = -np.inf
  return z


def decode(model, prompt, length, options, stop_ids, choose):
  """Up to `length` tokens of `model`; `choose(z, position)` takes one."""
  output = []
  while len(output) < length:
    z = adjusted(model([*prompt, *output]), prompt, output, options, stop_ids)
    output.append(int(choose(z, len(prompt) + len(output))))
    if output[-1] in stop_ids:
      break
  return output
