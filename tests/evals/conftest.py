# SPDX-License-Identifier: MIT
"""What these tests run under: one target, one drafter, few decoders."""

import pytest

from jspec.decode import generate
from jspec.decode.verify import api as verify
from tests.evals import drafters, small, unchecked


@pytest.fixture(scope='module', autouse=True)
def unchecked_constructors():
  with unchecked.constructors():
    yield


@pytest.fixture(scope='session')
def loaded():
  return small.loaded()


@pytest.fixture(scope='session')
def known(loaded):
  """All drafts right, unless the test says how many: `known.set(2)`."""
  return drafters.Known(loaded.model, small.NUM_DRAFT_TOKENS)


@pytest.fixture(autouse=True)
def all_right(known):
  yield
  known.set(small.NUM_DRAFT_TOKENS)


@pytest.fixture(scope='session')
def compiled():
  return {}


@pytest.fixture(autouse=True)
def decoders(compiled, monkeypatch):
  """Makes every decoder once, and reuses it: compiling is what takes time."""
  plain_make = generate.Decoder

  def make(target, drafter, **given):
    verifier = drafter and verify.accept
    key = (id(target), id(drafter), verifier, *sorted(given.items()))
    if key not in compiled:
      compiled[key] = plain_make(target, drafter, **given)
    return compiled[key]

  monkeypatch.setattr(generate, 'PREFILL_CHUNKS', (16,))
  monkeypatch.setattr(generate, 'Decoder', make)
