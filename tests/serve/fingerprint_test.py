# SPDX-License-Identifier: MIT
"""Processes are told apart by whatever would make them call otherwise."""

import dataclasses

import jax
import numpy as np
from jax.sharding import Mesh

from jspec.drafters import ngram
from jspec.serve import fingerprint, start_up
from jspec.testing import toy
from tests.serve import small


def facts(seed=0, drafts=4, num_devices=2, is_split=False, **changes):
  target = toy.target(seed, max_len=small.MAX_LEN)
  chosen = dataclasses.replace(small.SETTINGS, **changes)
  parts = start_up.parts(target, ngram.NGram(num_draft_tokens=drafts), chosen)
  mesh = Mesh(np.array(jax.devices()[:num_devices]), ('model',))
  return fingerprint.facts(
    target, parts.drafter, parts.sizes, mesh, is_split=is_split
  )


def differ(one, other):
  return {name for name in one if one[name] != other[name]}


def test_the_same_twice_and_what_differs_is_named():
  usual = facts()
  assert facts() == usual
  assert differ(usual, facts(seed=1)) == {'target'}
  assert differ(usual, facts(num_devices=4)) == {'devices'}
  assert differ(usual, facts(is_split=True)) == {'settings'}
  assert differ(usual, facts(num_rounds=3)) == {'settings'}
  assert differ(usual, facts(policies=('static',))) == {'settings'}
  assert 'drafter' in differ(usual, facts(drafts=3))
