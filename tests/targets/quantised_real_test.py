# SPDX-License-Identifier: MIT
"""Trained models in fewer bits: how often they say the same, and how surely.

The numbers of both are printed by

  python -m pytest -s -m slow tests/targets/quantised_real_test.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import loading
from jspec.cache import forms
from jspec.checkpoints import gguf
from jspec.evals import ties
from jspec.targets import embedded
from jspec.text import tokenizer as tokenizer_lib
from tests import stories260k
from tests.targets import goldens

TEXTS = (
  'The capital of France is Paris, which lies on the river Seine. The city has'
  ' been a centre of trade, science and art since the seventeenth century.',
  'def fibonacci(n):\n  a, b = 0, 1\n  for _ in range(n):\n    a, b = b,'
  ' a + b\n  return a\n\nprint(fibonacci(10))',
  'To make bread, mix flour, water, salt and yeast. Knead the dough until it is'
  ' smooth, let it rise for an hour, and bake it until the crust is brown.',
  'She opened the door and looked outside. It had rained all night, and the'
  ' street was full of water. "We will have to walk," she said to her brother.',
)
# Form of weights and cache: least agreement, most divergence in nats a token.
STORY = {
  ('int8', None): (0.93, 5e-3),
  ('fp8', None): (0.85, 5e-2),
  (None, 'bf16'): (0.96, 1e-3),
  (None, 'int8'): (0.93, 5e-3),
  (None, 'fp8'): (0.85, 5e-2),
}
LARGE = {
  ('int8', None): (0.93, 1e-2),
  ('fp8', None): (0.85, 1e-1),
  ('int8', 'int8'): (0.9, 2e-2),
  (None, 'bf16'): (0.97, 1e-3),
  (None, 'int8'): (0.93, 1e-2),
  (None, 'fp8'): (0.85, 1e-1),
}


@jax.jit
def log_probs(target, tokens):
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  hidden, _ = target.encode(tokens, positions, jnp.ones_like(tokens), ())
  return jax.nn.log_softmax(target.logits(hidden))


def compare(small, whole, is_text):
  """Share of equal likeliest tokens, and mean KL(whole || small)."""
  same = jnp.argmax(small, -1) == jnp.argmax(whole, -1)
  kl = jnp.sum(jnp.exp(whole) * (whole - small), axis=-1)
  return float(jnp.mean(same[is_text])), float(jnp.mean(kl[is_text]))


def test_the_published_story_stays_likely():
  whole = stories260k.load()
  ids = [stories260k.BOS_ID, *stories260k.greedy(whole, 60)]
  tokens = jnp.asarray([ids], jnp.int32)
  want = log_probs(whole, tokens)
  for (weights, cache), (agreement, divergence) in STORY.items():
    got = log_probs(stories260k.load(weights, cache), tokens)
    same, kl = compare(got, want, jnp.ones_like(tokens, bool))
    print(f'stories260k weights={weights} cache={cache}: {same:.3f} {kl:.2e}')
    assert same >= agreement, (weights, cache)
    assert 1e-7 < kl <= divergence, (weights, cache)


def embedded_model_is_there():
  path = embedded.cache_folder() / embedded.MEMBER.split('/')[-1]
  if not path.is_file():
    pytest.skip('smollm2_135m is not in the cache; load it once to fetch it')
  return path


@pytest.mark.slow
def test_the_embedded_model_says_almost_the_same():
  path = embedded_model_is_there()
  file = gguf.GGUFFile(path)
  tokenizer = tokenizer_lib.from_gguf(file.metadata, file.where)
  ids = [tokenizer.encode(text) for text in TEXTS]
  tokens = np.zeros((len(ids), max(map(len, ids))), np.int32)
  for row, some in enumerate(ids):
    tokens[row, : len(some)] = some
  is_text = np.arange(tokens.shape[1]) < np.array([[len(i)] for i in ids])

  def run(options):
    loaded = loading.load_target(embedded.NAME + options, progress=False)
    return log_probs(loaded.model, jnp.asarray(tokens))

  want = run('')
  print(f'\n{is_text.sum()} tokens')
  for (weights, cache), (agreement, divergence) in LARGE.items():
    options = ''.join(
      f',{key}={form}'
      for key, form in (('weights', weights), ('cache', cache))
      if form
    )
    same, kl = compare(run(options), want, is_text)
    print(f'smollm2_135m{options}: {same:.3f} {kl:.2e}')
    assert same >= agreement, options
    assert kl <= divergence, options


def moved(loaded, num_nodes):
  """How much the two likeliest logits move against each other, at most.

  Between texts scored by one node and by several at a time.
  """
  most = 0.0
  for text in TEXTS[:3]:
    ids = np.asarray(loaded.tokenizer.encode(text)[:32])
    ids = ids[None, : len(ids) // num_nodes * num_nodes]
    gaps = []
    for step in (1, num_nodes):
      cache = goldens.empty_cache(loaded.model, 1, max_len=64)
      logits = []
      for i in range(0, ids.shape[1], step):
        one, cache = goldens.feed(loaded.model, cache, ids[:, i : i + step])
        logits.append(np.asarray(one[0]))
      logits = np.concatenate(logits)
      if not gaps:
        best = np.argsort(logits, axis=-1)[:, -2:]
      two = np.take_along_axis(logits, best, axis=-1)
      gaps.append(two[:, 1] - two[:, 0])
    most = max(most, np.abs(gaps[0] - gaps[1]).max())
  return most


@pytest.mark.slow
@pytest.mark.parametrize('option', ['', 'weights=int8', 'weights=fp8'])
def test_weights_of_eight_bits_tie_as_those_of_floats(option):
  """So that tokens with drafts are those without, as in float32."""
  assert 0 < move(option) <= ties.EPSILON


@pytest.mark.slow
@pytest.mark.parametrize('form', forms.NAMES)
def test_rounded_caches_have_wider_ties(form):
  """Why `jspec evals lossless` refuses them."""
  assert 10 * ties.EPSILON < move(f'cache={form}') < 3


def move(option):
  embedded_model_is_there()
  spec = ','.join(filter(None, (embedded.NAME, option)))
  loaded = loading.load_target(spec, progress=False)
  most = moved(loaded, num_nodes=8)
  print(f'{spec}: likeliest logits move by {most:.1e}')
  return most
