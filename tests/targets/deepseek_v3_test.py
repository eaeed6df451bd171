# SPDX-License-Identifier: MIT
"""DeepSeek-V3 beyond its golden: YaRN, groups by hand, layers that draft."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.checkpoints import names
from jspec.nn import moe, rope
from jspec.targets import deepseek_v3, families
from tests.targets import goldens

YARN = families.FAMILIES['deepseek_v3'].PRESETS['deepseek_v3']['rope_scaling']


@pytest.mark.parametrize(
  'mscale, every, turned, scored',
  [
    # Both at 1: rotated vectors keep their length, scores grow by its square.
    (1.0, 1.0, 1.0, (0.1 * math.log(40) + 1) ** 2),
    (None, None, 0.1 * math.log(40) + 1, 1.0),
    (
      *(0.5, 2.0),
      (0.05 * math.log(40) + 1) / (0.2 * math.log(40) + 1),
      (0.2 * math.log(40) + 1) ** 2,
    ),
  ],
)
def test_yarn_lengthens_rotated_vectors_and_scores(
  mscale, every, turned, scored
):
  scaling = {**YARN, 'mscale': mscale, 'mscale_all_dim': every}
  config = goldens.config('deepseek_v3', 'config_v4.json', rope_scaling=scaling)
  assert math.isclose(rope.amplitude(config.rope), turned)
  assert math.isclose(config.attention_scale, scored / math.sqrt(24))
  assert config.rope.factor == 40
  inside = goldens.config(
    'deepseek_v3', rope_parameters=scaling | {'rope_theta': 1e4}
  )
  assert inside == config


def test_experts_of_other_groups_are_never_taken():
  config = moe.MoeConfig(
    width=2,
    num_experts=6,
    top_k=3,
    ff_width=2,
    score='sigmoid',
    has_bias=True,
    renormalise=False,
    num_groups=3,
    top_groups=2,
  )
  # Sums of two best: 1.6, 1.5 and 1.0, though the third has the best expert.
  scores = np.array([0.8, 0.8, 0.9, 0.6, 0.95, 0.05])
  router = np.zeros((2, 6), np.float32)
  router[0] = np.log(scores / (1 - scores))
  x = jnp.array([[1.0, 0.0]])
  choice = moe.route(x, jnp.asarray(router), config, jnp.zeros(6))
  assert sorted(choice.experts[0].tolist()) == [0, 1, 2]
  # A bias below every score does not bring the third group back.
  choice = moe.route(x, jnp.asarray(router), config, jnp.full(6, -2.0))
  assert sorted(choice.experts[0].tolist()) == [0, 1, 2]
  np.testing.assert_allclose(
    np.sort(choice.weights[0]), [0.8, 0.8, 0.9], rtol=1e-5
  )


@pytest.mark.parametrize(
  'change, named',
  [
    (dict(num_groups=4), 'num_groups=4'),
    (dict(num_groups=6), 'two or more'),
    (dict(num_groups=3, top_groups=4), 'top_groups=4'),
    (dict(num_groups=3, top_groups=1), 'top_k=3'),
  ],
)
def test_groups_that_cannot_be_are_refused(change, named):
  with pytest.raises(errors.UserError, match=named):
    moe.MoeConfig(width=2, num_experts=6, top_k=3, ff_width=2, **change)


def test_layers_that_draft_are_not_the_targets():
  config = goldens.config('deepseek_v3')
  own = {rule.source: np.ones(1) for rule in deepseek_v3.rules(config)}
  drafting = [
    f'model.layers.2.{name}' for name in ('eh_proj.weight', 'mlp.gate.weight')
  ]
  source = names.Held('here', own | {name: np.ones(1) for name in drafting})
  assert sorted(deepseek_v3.ignored(config, source)) == drafting
  # A layer too many is none that drafts, and is not known.
  odd = names.Held('here', own | {drafting[1]: np.ones(1)})
  assert deepseek_v3.ignored(config, odd) == []
