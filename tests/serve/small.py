# SPDX-License-Identifier: MIT
"""An engine as small as it can be and still do everything."""

import dataclasses

import jax.numpy as jnp
from flax import nnx

from jspec.decode import sampling
from jspec.serve import engine as engine_lib
from jspec.serve import settings as settings_lib
from jspec.testing import toy
from tests.evals import unchecked

MAX_LEN = 64
LENGTHS = (1, 2, 5, 17, 33, 40, 3, 9)
SETTINGS = settings_lib.Settings(
  max_rows=4,
  max_len=MAX_LEN,
  page_size=8,
  num_rounds=2,
  row_buckets=(4,),
  num_budgets=3,
  chunk_sizes=(16,),
  max_prefill_tokens=32,
)


def make(
  target, drafter, compiler=None, mesh=None, kept=None, **changes
) -> engine_lib.Engine:
  """An engine with `SETTINGS`; `changes` replace some."""
  with unchecked.constructors():
    return engine_lib.Engine(
      target,
      drafter,
      dataclasses.replace(SETTINGS, **changes),
      mesh,
      compiler=compiler,
      kept=kept,
    )


def prompts():
  return [toy.prompts(1, length, seed=length)[0].tolist() for length in LENGTHS]


def requests():
  kinds = (
    {},
    {'temperature': 0.8},
    {'temperature': 1.3, 'top_k': 5},
    {'temperature': 0.7, 'top_p': 0.8},
    {'temperature': 1.0, 'min_p': 0.05},
  )
  return [
    sampling.SamplingParams(
      seed=i, max_tokens=9 + 2 * i, **kinds[i % len(kinds)]
    )
    for i in range(len(LENGTHS))
  ]


class Poisoned(nnx.Module):
  """A target that gives no finite logit where it would say one token."""

  def __init__(self, target, token):
    self.target, self.token = target, token
    for name in (
      'num_layers',
      'num_kv_heads',
      'head_width',
      'width',
      'vocab_size',
      'max_len',
      'cache_form',
    ):
      setattr(self, name, getattr(target, name))

  def score(self, *args, **named):
    return self.target.score(*args, **named)

  def embed(self, tokens):
    return self.target.embed(tokens)

  def logits(self, hidden):
    logits = self.target.logits(hidden)
    is_bad = jnp.argmax(logits, axis=-1) == self.token
    return jnp.where(is_bad[..., None], jnp.nan, logits)
