# SPDX-License-Identifier: MIT
"""The same weights say the same through transformers, where it is installed."""

import jax.numpy as jnp
import pytest

from jspec import tree
from jspec.bench import hf, programs
from jspec.testing import toy

pytest.importorskip('transformers')


def greedy(model, prompt, num_tokens):
  """Reads everything anew for every token."""
  tokens = list(prompt)
  for _ in range(num_tokens):
    number = len(tokens)
    scored = model.score(
      jnp.asarray([tokens]),
      jnp.arange(number)[None],
      tree.chain_words(1, number),
      programs.filled_cache(model, 1, 0),
      (),
    )
    logits = model.logits(scored.hidden[:, -1:])
    tokens.append(int(jnp.argmax(logits)))
  return tokens[len(prompt) :]


@pytest.mark.slow
def test_rows_decode_the_tokens_of_the_target():
  model = toy.target()
  prompts = [toy.prompts(1, 7, seed=seed)[0].tolist() for seed in (1, 2)]
  rows = hf.Rows(model)
  for _ in range(2):  # Beginning again forgets what was before.
    first = rows.begin(prompts)
    two, three = rows.decode(2), rows.decode(3)
    found = [[first[i], *two[i], *three[i]] for i in range(2)]
    assert found == [greedy(model, prompt, 6) for prompt in prompts]
  assert rows.num_threads >= 1
