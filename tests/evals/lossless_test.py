# SPDX-License-Identifier: MIT
"""Identity with plain decoding is found, and so is its absence."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from jspec import conversation, errors
from jspec.cli import main, options
from jspec.data import sources
from jspec.decode import generate, sampling
from jspec.decode.verify import api as verify
from jspec.evals import lossless
from jspec.testing import toy
from tests.evals import small

GREEDY = sampling.SamplingParams(max_tokens=20)
HOT = sampling.SamplingParams(max_tokens=20, temperature=0.9, top_k=20)
REAL_ACCEPT = verify.accept


def talk():
  return [
    sources.Prompt('a', ('w5 w9 w30', 'w8'), 'chat'),
    sources.Prompt('b', ('w1 w2 w3 w4 w5 w6 w7',), 'math'),
    sources.Prompt('c', ('w44',), 'chat'),
  ]


@pytest.fixture
def half_right(known):
  """Two right drafts, then wrong ones."""
  known.set(2)
  return known


def accept_everything(logits, draft, params, anchor_positions, rule):
  """A verifier that believes the drafter; right where there are no drafts."""
  real = REAL_ACCEPT(logits, draft, params, anchor_positions, rule)
  num_accepted = draft.num_nodes - 1
  num_nodes = draft.tokens.shape[1]
  shifted = jnp.concatenate(
    [draft.tokens[:, 1:], jnp.zeros_like(draft.tokens[:, :1])], axis=1
  )
  best = jnp.argmax(logits, axis=-1).astype(jnp.int32)
  is_draft = jnp.arange(num_nodes) < num_accepted[:, None]
  tokens = jnp.where(is_draft, shifted, best)
  has_drafts = num_accepted > 0
  return dataclasses.replace(
    real,
    num_accepted=jnp.where(has_drafts, num_accepted, real.num_accepted),
    tokens=jnp.where(has_drafts[:, None], tokens, real.tokens),
  )


def run(loaded, drafter, params=GREEDY, **given):
  return lossless.run(loaded, drafter, talk(), params, num_rows=2, **given)


@pytest.mark.parametrize('params', [GREEDY, HOT], ids=['greedy', 'sampled'])
def test_honest_verifier_is_identical(loaded, half_right, params):
  seen = []
  result = run(
    loaded, half_right, params, on_progress=lambda *counts: seen.append(counts)
  )
  assert result['identical'] == result['total'] == 4
  assert result['ties'] == result['failures'] == 0
  assert result['differences'] == []
  assert result['num_tokens'] == 4 * 20
  assert seen[-1] == (8, 8) and seen == sorted(seen)
  assert json.loads(json.dumps(result)) == result
  assert '4 identical, 0 ties, 0 failures' in lossless.table(result)


@pytest.mark.few(1)
@pytest.mark.parametrize('params', [GREEDY, HOT], ids=['greedy', 'sampled'])
def test_verifier_that_accepts_everything_fails(
  loaded, half_right, params, monkeypatch
):
  monkeypatch.setattr(verify, 'accept', accept_everything)
  result = run(loaded, half_right, params)
  assert result['total'] == 4 and result['identical'] == 0
  assert result['failures'] >= 3  # a wrong token is far from a tie
  assert result['identical'] + result['ties'] + result['failures'] == 4
  for difference in result['differences']:
    if not difference['is_tie']:
      assert difference['gap'] > 1e-3
    # Two drafts are right, so greedy answers part at the third token.
    if params is GREEDY:
      assert difference['answer_position'] == 2
  text = lossless.table(result)
  assert 'FAILURE' in text and f'{result["failures"]} failures' in text
  assert json.loads(json.dumps(result)) == result


def test_command_line_ends_with_0_or_1(
  loaded, half_right, monkeypatch, tmp_path, capsys
):
  monkeypatch.setattr(options, 'models', lambda args: (loaded, half_right))
  monkeypatch.setattr(options, 'prompts', lambda spec, limit: talk())
  out = tmp_path / 'out.json'
  words = ['evals', 'lossless', '--rows', '2', '--max-tokens', '20']
  words += ['--json', str(out)]
  assert main.main(words) == 0
  assert json.loads(out.read_text())['identical'] == 4
  monkeypatch.setattr(verify, 'accept', accept_everything)
  assert main.main(words) == 1
  assert json.loads(out.read_text())['failures'] >= 3
  assert 'FAILURE' in capsys.readouterr().out


def reply(tokens, finish_reason='length'):
  output = generate.Output(list(tokens), finish_reason, len(tokens), [], [])
  return conversation.Reply('p', 0, 'w1', '', [60, 1, 61], output)


def compare(plain, drafted, row=(0.0,) * 8):
  asked = []

  def logits_behind(prefix):
    asked.append(prefix)
    return np.asarray([row, row], np.float32)

  found = lossless.compare(
    [plain], [drafted.output], [sampling.SamplingParams()], logits_behind
  )
  return found, asked


def test_tie_is_listed_apart():
  row = [0, 0, 3, 3 - 5e-5, 0, 0, 0, 0]
  found, asked = compare(reply([7, 2, 5]), reply([7, 3, 6]), row)
  assert asked == [[60, 1, 61, 7]]  # the first difference only
  (difference,) = found
  assert difference['is_tie']
  assert difference['position'] == 4 and difference['answer_position'] == 1
  assert (difference['plain'], difference['drafted']) == (2, 3)
  assert difference['gap'] == pytest.approx(5e-5, abs=1e-6)


def test_gap_above_epsilon_is_no_tie():
  row = [0, 0, 3, 3 - 2e-4, 0, 0, 0, 0]
  (difference,), _ = compare(reply([7, 2, 5]), reply([7, 3, 6]), row)
  assert not difference['is_tie']


@pytest.mark.parametrize(
  'plain, drafted',
  [
    (reply([1, 2, 3]), reply([1, 2])),
    (reply([1, 2]), reply([1, 2, 3])),
    (reply([1, 2]), reply([])),
    (reply([1, 2], 'stop'), reply([1, 2], 'length')),
  ],
)
def test_another_end_is_never_a_tie(plain, drafted):
  found, asked = compare(plain, drafted)
  assert asked == []
  (difference,) = found
  assert not difference['is_tie'] and difference['gap'] is None


def test_equal_answers_are_not_rescored():
  assert compare(reply([1, 2]), reply([1, 2])) == ([], [])


@pytest.mark.parametrize(
  'a, b, expected',
  [([1], [1], None), ([], [], None), ([1, 2], [1, 3], 1), ([1], [], 0)],
)
def test_first_difference_is_found(a, b, expected):
  assert lossless.first_difference(a, b) == expected


def test_no_drafter_is_refused(loaded):
  with pytest.raises(errors.UserError, match='other than none'):
    run(loaded, None)


def test_a_rounded_cache_is_refused(loaded, known):
  model = toy.target(cache_form='int8')
  with pytest.raises(errors.UserError, match='cache in int8, where tokens may'):
    run(small.changed(loaded, model=model), known)


def test_low_precision_is_refused(loaded, known):
  class Low:
    def embed(self, tokens):
      return jnp.zeros((1, 4), jnp.bfloat16)

  with pytest.raises(errors.UserError, match='bfloat16'):
    run(small.changed(loaded, model=Low()), known)
