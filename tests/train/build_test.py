# SPDX-License-Identifier: MIT
"""What builders fill in from the target, and what they refuse.

No array is made: of every drafter only the config and the map are looked at.
"""

import types

import jax
import numpy as np
import pytest

from jspec import errors
from jspec.data import examples
from jspec.drafters import block_method, borrowed, d2sd, method, vocab
from jspec.nn import rope
from jspec.train import build, prepare, settings
from tests.drafters import every_method

EOS, BOS, RESERVED, VOCAB = 2, 1, 63, 64
LLAMA3 = rope.RopeConfig(
  base=5e6, kind='llama3', factor=8.0, original_max_len=8192
)
YARN = rope.RopeConfig(base=5e6, kind='yarn', factor=4.0, original_max_len=4096)


class Made(Exception):
  """Ends a build with what the drafter would have been made of."""

  def __init__(self, config, ids):
    super().__init__()
    self.config, self.ids = config, ids


@pytest.fixture(autouse=True)
def no_arrays(monkeypatch):
  """No drafter is made, and nothing borrowed but the map."""

  def make(self, config, loss_config, ids, key):
    del self, loss_config, key
    raise Made(config, ids)

  for of in (block_method.BlockMethod, d2sd.D2SDMethod, method.PlainMethod):
    monkeypatch.setattr(of, 'make', make)
  monkeypatch.setattr(borrowed, 'from_target', lambda target, ids=None: ids)


def loaded(num_layers=12, rotary=LLAMA3):
  like = types.SimpleNamespace(
    ff_width=48,
    num_heads=4,
    num_kv_heads=2,
    head_width=8,
    rope=rotary,
    logit_cap=None,
  )
  model = types.SimpleNamespace(
    num_layers=num_layers, width=32, vocab_size=VOCAB, config=like
  )
  return types.SimpleNamespace(
    name='toy',
    model=model,
    tokenizer=types.SimpleNamespace(bos_id=BOS),
    stop_ids=(EOS,),
  )


def config_of(name, of=None, **changes):
  make = build.resolve(every_method.builder(name))
  options = {**every_method.options(name), **changes}
  with pytest.raises(Made) as made:
    make(of or loaded(), options, None, jax.random.key(0))
  return made.value.config


@pytest.mark.parametrize('name', every_method.NAMES)
def test_layers_are_distinct_or_refused_when_a_target_is_shallow(name):
  built = []
  for num_layers in range(1, 8):
    try:
      taps = config_of(name, loaded(num_layers)).taps
    except errors.UserError as error:
      assert 'taps' in str(error) and f'{num_layers} layers' in str(error)
      continue
    assert list(taps) == sorted(set(taps))
    assert 0 <= taps[0] and taps[-1] < num_layers
    built.append(num_layers)
  # Two spread layers want five, three want seven; MTP wants the last one.
  least = {'mtp': 1, 'eagle3': 7, 'specblock': 7}.get(name, 5)
  assert built == list(range(least, 8))


@pytest.mark.parametrize('name', [*every_method.BLOCK, 'd2sd'])
def test_mask_token_must_be_one_that_no_text_uses(name):
  assert config_of(name, mask_token_id=RESERVED).mask_token_id == RESERVED
  for token_id, said in (
    (None, 'is not set'),
    (EOS, f'{EOS} begins or ends texts'),
    (BOS, f'{BOS} begins or ends texts'),
    (VOCAB, f'mask_token_id={VOCAB}'),
    (-1, 'mask_token_id=-1'),
  ):
    with pytest.raises(errors.UserError, match=said):
      config_of(name, mask_token_id=token_id)
  options = every_method.options(name)
  del options['mask_token_id']
  make = build.resolve(every_method.builder(name))
  with pytest.raises(errors.UserError, match='mask_token_id is not set'):
    make(loaded(), options, None, jax.random.key(0))


@pytest.mark.parametrize('rotary', [LLAMA3, YARN], ids=['llama3', 'yarn'])
@pytest.mark.parametrize('name', every_method.NAMES)
def test_rotary_base_is_the_targets_and_never_scaled(name, rotary):
  """A drafter's positions are its own: plain, of the base that is saved."""
  config = config_of(name, loaded(rotary=rotary))
  assert config.rope_base == 5e6
  shapes = getattr(config, 'block', getattr(config, 'layer', config))
  used = getattr(shapes, 'rope', rope.RopeConfig(base=shapes.rope_base))
  assert used == rope.RopeConfig(base=5e6)
  plain = 5e6 ** -(np.arange(0, 8, 2) / 8)
  found = rope.inverse_frequencies(used, config.head_width)
  np.testing.assert_allclose(found, plain, rtol=1e-6)
  assert rope.amplitude(used) == 1.0
  # Negative control: the target turns by other angles.
  target = rope.inverse_frequencies(rotary, config.head_width)
  assert np.abs(target / found - 1).max() > 0.1
  assert config_of(name, rope_base=1e4).rope_base == 1e4


def documents(seed):
  rng = np.random.default_rng(seed)
  tokens = rng.zipf(1.5, (20, 30)) % VOCAB
  return [
    examples.Document(f'd{i}', row.astype(np.int32), np.arange(30) > 4)
    for i, row in enumerate(tokens)
  ]


@pytest.mark.parametrize('name', every_method.NAMES)
def test_draft_vocabulary_is_that_of_the_run_and_of_no_other(
  name, tmp_path, monkeypatch
):
  """Runs after each other in one folder, with and without a vocabulary."""
  monkeypatch.chdir(tmp_path)

  def run(size, found):
    config = settings.TrainConfig(
      target='toy',
      drafter=settings.DrafterConfig(
        build=every_method.builder(name),
        draft_vocab_size=size,
        options=every_method.options(name),
      ),
      data=settings.DataConfig(answers='a', store='taps'),
    )
    with pytest.raises(Made) as made:
      prepare.drafter(config, loaded(), found)
    assert made.value.config.draft_vocab_size == size
    return made.value.ids

  first, other = documents(0), documents(1)
  counts = examples.answer_counts(first, VOCAB)
  for size in (32, None, 40):
    ids = run(size, first)
    if size is None:
      assert ids is None
      continue
    want = vocab.choose_by_frequency(counts, size, always=(EOS,))
    np.testing.assert_array_equal(ids, want)
    assert not np.array_equal(ids, run(size, other))
  assert not list(tmp_path.iterdir())
