# SPDX-License-Identifier: MIT
"""Rounds of drafts with logit options emit what plain decoding emits.

Plain decoding is numpy, one token at a time; the rounds go through `adjust`,
`verify` and `history` on trees that are right in parts.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import tree
from jspec.decode import adjust, history, keys, options, sampling
from jspec.decode.verify import api as verify
from tests.decode import plain_options
from tests.decode.plain_options import VOCAB

NODES, NUM_STOPS, EOS = 7, 2, 0
KINDS = [
  {},
  {'repetition_penalty': 1.6},
  {'presence_penalty': 1.5, 'frequency_penalty': 0.8},
  {'frequency_penalty': -1.0},
  {'logit_bias': ((3, -100.0), (7, 2.0))},
  {'min_tokens': 9, 'logit_bias': ((EOS, 3.0),)},
  {'bad_words': ((1, 2), (4,), (5, 6, 5), (9, 9))},
  {
    'repetition_penalty': 1.1,
    'presence_penalty': -0.5,
    'frequency_penalty': 1.2,
    'logit_bias': ((EOS, 4.0), (8, -1.0)),
    'min_tokens': 6,
    'bad_words': ((8, 8), (2, 1), (1, 3, 1), (10,)),
  },
]


def adjusted(logits, draft, asked, seen, stop_ids):
  return adjust.adjust(
    logits, draft.tokens, draft.parents, asked, seen, stop_ids
  )


def committed_only(logits, draft, asked, seen, stop_ids):
  """The defect of one history for a whole round."""
  rows, nodes, vocab = logits.shape
  flat = adjust.adjust_packed(
    logits.reshape(-1, vocab),
    jnp.full((rows * nodes, 1), -1, jnp.int32),
    jnp.repeat(jnp.arange(rows, dtype=jnp.int32), nodes),
    asked,
    seen,
    stop_ids,
  )
  return flat.reshape(logits.shape)


@functools.partial(jax.jit, static_argnames='apply')
def accept(apply, logits, draft, params, asked, seen, stop_ids, positions):
  logits = apply(logits, draft, asked, seen, stop_ids)
  return verify.accept(logits, draft, params, positions, 'walk')


commit = jax.jit(history.commit, donate_argnums=0)
admit = jax.jit(history.admit, donate_argnums=0)


@jax.jit
def choose(z, params, position):
  uniform = keys.uniforms(params.seeds, position[None], keys.ACCEPT)
  return sampling.sample(z[None], params, uniform)[0]


def chains(rng, row, node):
  return node - 1


def bushes(rng, row, node):
  return node - 1 if rng.uniform() < 0.7 else rng.integers(0, node)


def draft_of(rng, anchors, right, shape, num_nodes=None):
  """Trees that hold parts of `right[b]`, what row b will emit."""
  rows = len(anchors)
  tokens = rng.integers(0, VOCAB, (rows, NODES))
  tokens[:, 0] = anchors
  parents = np.full((rows, NODES), -1)
  for b in range(rows):
    depth = [0]
    for node in range(1, NODES):
      parents[b, node] = shape(rng, b, node)
      depth.append(depth[parents[b, node]] + 1)
      if depth[node] <= len(right[b]) and rng.uniform() < 0.85:
        tokens[b, node] = right[b][depth[node] - 1]
  if num_nodes is None:
    num_nodes = rng.integers(1, NODES + 1, rows)
  return tree.Draft(
    tokens=jnp.asarray(tokens, jnp.int32),
    parents=jnp.asarray(parents, jnp.int32),
    num_nodes=jnp.asarray(num_nodes, jnp.int32),
    confidence=jnp.ones((rows, NODES)),
  )


def model_logits(model, prompt, output, draft, row):
  """The model behind every node of one row."""
  texts = [[*prompt, *output]]
  for node in range(1, NODES):
    up = int(draft.parents[row, node])
    texts.append([*texts[up], int(draft.tokens[row, node])])
  return [model(text) for text in texts]


def speculate(
  model, prompts, requests, params, right, length, rng, *, apply=adjusted,
  shape=bushes, num_nodes=None,
):  # fmt: skip
  """Emits up to `length` tokens a row in rounds; also the drafts accepted."""
  rows = len(prompts)
  asked = options.stack(requests)
  stop_ids = jnp.asarray([[EOS, -1]] * rows, jnp.int32)
  seen = history.init(rows, VOCAB)
  for row, prompt in enumerate(prompts):
    seen = admit(seen, row, np.array(prompt, np.int32), np.int32(len(prompt)))
  outputs, num_accepted = [[] for _ in prompts], []
  while any(len(o) < length and EOS not in o for o in outputs):
    texts = [[*p, *o] for p, o in zip(prompts, outputs, strict=True)]
    left = [r[len(o) :] for r, o in zip(right, outputs, strict=True)]
    draft = draft_of(rng, [t[-1] for t in texts], left, shape, num_nodes)
    host = jax.tree.map(np.asarray, draft)
    logits = np.array(
      [
        model_logits(model, prompts[b], outputs[b], host, b)
        for b in range(rows)
      ],
      np.float32,
    )
    positions = np.array([len(t) - 1 for t in texts], np.int32)
    found = accept(
      apply, logits, draft, params, asked, seen, stop_ids, positions
    )
    tokens, num = np.asarray(found.tokens), np.zeros(rows, np.int32)
    for b in range(rows):
      if len(outputs[b]) >= length or EOS in outputs[b]:
        continue
      new = tokens[b, : int(found.num_accepted[b]) + 1].tolist()
      if EOS in new:
        new = new[: new.index(EOS) + 1]
      new = new[: length - len(outputs[b])]
      num[b] = len(new)
      outputs[b] += new
      num_accepted.append(len(new) - 1)
    seen = commit(seen, found.tokens, num)
  return outputs, num_accepted


def plain(model, prompts, requests, params, length):
  """Numpy, token by token."""
  found = []
  for row, (prompt, request) in enumerate(zip(prompts, requests, strict=True)):
    one = jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], params)
    found.append(
      plain_options.decode(
        model,
        prompt,
        length,
        request,
        (EOS,),
        lambda z, position, one=one: choose(z, one, np.int32(position)),
      )
    )
  return found


def mixture(seed, temperature):
  """A language and rows of every kind of options; prompts of three tokens."""
  rng = np.random.default_rng(seed)
  table = plain_options.language(seed, scale=1.5)
  table[:, :, EOS] -= 3  # most rows should last
  requests = [options.LogitOptions(**kind) for kind in KINDS]
  prompts = [rng.integers(1, VOCAB, 3).tolist() for _ in KINDS]
  params = sampling.stack(
    [
      sampling.SamplingParams(temperature=temperature, seed=seed * 100 + row)
      for row in range(len(KINDS))
    ]
  )
  return (
    functools.partial(plain_options.raw, table), prompts, requests, params, rng,
  )  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize('temperature', [0.0, 1.0])
@pytest.mark.parametrize('seed', [0, 1])
def test_rounds_emit_the_tokens_of_plain_decoding(seed, temperature):
  model, prompts, requests, params, rng = mixture(seed, temperature)
  right = plain(model, prompts, requests, params, 24)
  found, num_accepted = speculate(
    model, prompts, requests, params, right, 24, rng
  )
  assert found == right
  # Drafts were kept, several at a time, and refused.
  assert {0, 1, 2} <= set(num_accepted) and max(num_accepted) >= 4
  # The options matter: without them the rows emit something else.
  silent = [options.LogitOptions()] * len(prompts)
  differs = [
    a != b
    for a, b in zip(
      plain(model, prompts, silent, params, 24), right, strict=True
    )
  ]
  assert sum(differs) >= 5 and not differs[0]


@pytest.mark.parametrize('temperature', [0.0, 1.0])
def test_one_history_for_a_whole_round_is_noticed(temperature):
  model, prompts, requests, params, rng = mixture(0, temperature)
  right = plain(model, prompts, requests, params, 24)
  found, _ = speculate(
    model, prompts, requests, params, right, 24, rng, apply=committed_only
  )
  assert sum(a != b for a, b in zip(found, right, strict=True)) >= 2


def eos_from(num_prompt, at):
  """A model that wants to end from output token `at` on, and 5 before."""

  def model(text):
    z = np.zeros(VOCAB, np.float32)
    z[5], z[EOS] = 2.0, 3.0 if len(text) - num_prompt >= at else 1.0
    return z

  return model


@pytest.mark.parametrize('depth', [1, 2, 3, 4, 5, 6])
def test_the_end_comes_exactly_where_the_minimum_lets_it(depth):
  at, prompt = 5, [1, 2]
  model = eos_from(len(prompt), at)
  minima = [0, 1, at - 1, at, at + 1, at + 2, at + 4, at + 9]
  requests = [options.LogitOptions(min_tokens=m) for m in minima]
  params = sampling.stack([sampling.SamplingParams()] * len(minima))
  right = [[5] * max(at, m) + [EOS] for m in minima]
  prompts = [prompt] * len(minima)
  assert plain(model, prompts, requests, params, 30) == right
  # What was drafted is the end itself, from every place on.
  drafted = [[5] * at + [EOS] * 30 for _ in minima]
  for drafts in (drafted, right):
    found, _ = speculate(
      model,
      prompts,
      requests,
      params,
      drafts,
      30,
      np.random.default_rng(depth),
      shape=chains,
      num_nodes=[depth + 1] * len(minima),
    )
    assert found == right


def test_banned_never_and_forced_always_whatever_is_drafted():
  banned, forced = 4, 9

  def model(text):
    z = np.zeros(VOCAB, np.float32)
    z[banned], z[3] = 9.0, 5.0
    return z

  requests = [
    options.LogitOptions(logit_bias=((banned, -100.0),)),
    options.LogitOptions(logit_bias=((forced, 100.0),)),
    *[options.LogitOptions()] * 6,
  ]
  params = sampling.stack(
    [sampling.SamplingParams(temperature=1.0, seed=s) for s in range(8)]
  )
  prompts = [[1, banned]] * 8
  right = plain(model, prompts, requests, params, 20)
  found, _ = speculate(
    model,
    prompts,
    requests,
    params,
    [[banned] * 20] * 8,
    20,
    np.random.default_rng(0),
  )
  assert found == right
  assert banned not in found[0] and banned in found[2]
  assert set(found[1]) == {forced}
