# SPDX-License-Identifier: MIT
"""What a config says of D2SD arrives, what it may not say is refused."""

import jax
import pytest

from jspec import errors
from jspec.train import build_d2sd
from tests.train import tiny

OPTIONS = {
  'num_layers': 1,
  'taps': (0, 2),
  'mask_token_id': 3,
  'block_size': 4,
  'loss': {'num_anchors': 8, 'mix': {'ce': 0.5}},
}


def _build(**options):
  return build_d2sd.d2sd(
    tiny.loaded(), {**OPTIONS, **options}, None, jax.random.key(0)
  )


def test_options_arrive():
  drafter = _build(
    prefix_decay=0.5, parts={'num_cuts': 2, 'shared': False}, label_shift=1
  )
  assert drafter.method == 'd2sd' and len(drafter.drafters) == 2
  assert drafter.config.num_cuts == 2 and drafter.config.label_shift == 1
  assert drafter.loss_config.prefix_decay == 0.5
  for one in drafter.drafters:
    assert one.loss_config.num_anchors == 8 and one.loss_config.mix.ce == 0.5
  # A block of four drafts and two branches, which share a prefix of one.
  assert drafter.num_draft_tokens == 4 + 2 * 4 - 1


@pytest.mark.parametrize(
  'options, message',
  [
    ({'prefix_decay': 2.0}, 'prefix_decay=2.0'),
    ({'prefix_decay': 'much'}, "prefix_decay is 'much'"),
    ({'parts': {'markov_rank': 4}}, 'no key `markov_rank` for d2sd'),
    ({'parts': {'num_cuts': 5}}, 'num_cuts=5'),
    ({'nonsense': 1}, 'nonsense'),
    ({'loss': {'gate_entropy': 1.0}}, 'gate_entropy=1.0'),
  ],
)
def test_what_does_not_fit_is_refused(options, message):
  with pytest.raises(errors.UserError, match=message):
    _build(**options)
