# SPDX-License-Identifier: MIT
"""What the files alone show, one fault at a time."""

import numpy as np
import pytest

from jspec import errors, loading
from jspec.doctor import examine, report, tensor_checks
from jspec.testing import toy
from tests.doctor import checkpoints
from tests.doctor.checkpoints import NORM, edit, golden, good

MAP = tensor_checks.MAP


@pytest.fixture(scope='module')
def target():
  return toy.target()


def found(path, **options):
  checkup = examine.examine(path, **options)
  return [(f.level, f.what) for f in checkup.findings]


def only(path, level, *said, **options):
  """The one finding, which says all of these."""
  findings = found(path, **options)
  assert len(findings) == 1, findings
  assert findings[0][0] == level
  for words in said:
    assert words in findings[0][1], findings


def test_good_checkpoint_has_no_finding_and_says_what_it_wants(
  tmp_path, target
):
  checkup = examine.examine(good(tmp_path / 'a', target))
  assert checkup.findings == []
  result = examine.result(checkup)
  assert (result['method'], result['layout']) == ('dflash', 'native')
  facts = result['facts']
  assert facts['target'] == f'toy, fingerprint {checkpoints.FINGERPRINT}'
  assert facts['taps'] == '0, 1, 2'
  assert facts['block_size'] == '4'
  assert facts['num_draft_tokens'] == '3'
  assert facts['label_shift'] == '0'
  assert facts['draft vocabulary'] == 'whole'
  assert facts['mask token'] == '63'
  assert facts['chat template'] == checkpoints.TEMPLATE
  assert 'bfloat16' in facts['numbers']
  text = report.text(result)
  assert text.endswith('nothing found')


def test_workdir_of_a_run_is_its_export(tmp_path, target):
  good(tmp_path / 'run' / loading.EXPORT, target)
  (tmp_path / 'run' / 'config.json').write_text('{"config": {}}')
  assert examine.examine(tmp_path / 'run').findings == []


@pytest.mark.parametrize(
  'key',
  [
    'label_shift',
    'block_size',
    'num_draft_tokens',
    'target_layer_ids',
    'rope_theta',
    'mask_token_id',
  ],
)
def test_native_key_that_is_absent_is_named(tmp_path, target, key):
  path = good(tmp_path / 'a', target)
  edit(path, lambda config, tensors: config.pop(key))
  only(path, 'wrong', key)


def test_target_and_template_that_are_not_said(tmp_path, target):
  path = good(tmp_path / 'a', target, template='')
  only(path, 'doubt', 'target_template')
  path = good(tmp_path / 'b', target, target_fingerprint='')
  only(path, 'doubt', 'target_fingerprint')


def test_shapes_are_named_with_both_numbers(tmp_path, target):
  path = good(tmp_path / 'a', target)

  def cut(config, tensors):
    tensors['context_proj.weight'] = tensors['context_proj.weight'][:, :64]

  edit(path, cut)
  only(path, 'wrong', 'context_proj.weight', '[32, 64]', '96')
  path = good(tmp_path / 'b', target)
  edit(path, lambda config, tensors: tensors.pop(NORM))
  only(path, 'wrong', f'no tensor {NORM}')


def test_mask_token_that_texts_use(tmp_path, target):
  path = good(tmp_path / 'a', target)
  for key, value in (('pad_token_id', 63), ('eos_token_id', [2, 63])):
    checkup = examine.examine(path, extra={key: value})
    whats = [f.what for f in checkup.findings]
    assert any(f'mask_token_id is 63, which is {key}' in w for w in whats)


def test_taps_in_odd_places(tmp_path, target):
  def turn(config, tensors):
    config['target_layer_ids'] = [2, 0, 1]

  path = edit(good(tmp_path / 'a', target), turn)
  only(path, 'doubt', '[2, 0, 1]', 'not in ascending order')
  # Ours are captured before the final norm; others' may not be.
  path = good(tmp_path / 'b', target)
  assert 2 in examine.examine(path).config['target_layer_ids']
  assert found(path) == []
  path = golden(
    tmp_path / 'c', 'zlab_dflash', lambda c, t: c.update(num_target_layers=3)
  )
  assert any('layer 2 is the last of 3' in what for _, what in found(path))


def test_numbers_that_are_broken_or_untrained(tmp_path, target):
  def change(name, value):
    def put(config, tensors):
      tensors[name] = np.full_like(tensors[name], value)

    return put

  proj = 'context_proj.weight'
  path = edit(good(tmp_path / 'a', target), change(proj, np.nan))
  only(path, 'wrong', 'NaN', proj)
  path = edit(good(tmp_path / 'b', target), change(proj, 0))
  only(path, 'wrong', 'zero', proj)
  path = good(tmp_path / 'c', target)
  edit(path, lambda config, tensors: checkpoints.ones(tensors))
  only(path, 'doubt', 'exactly 1')
  # One trained gain is enough: the others may be 1.
  edit(path, change(NORM, 1.5))
  assert found(path) == []


def test_zero_is_how_some_parts_start(tmp_path):
  shared = {'hidden_correction.down_proj.weight': np.zeros((4, 4), np.float32)}
  ((level, what),) = [
    (f.level, f.what) for f in tensor_checks.check(shared, {}, {})
  ]
  assert level == 'doubt' and 'does nothing' in what


def test_dtypes_that_differ(tmp_path, target):
  def widen(config, tensors):
    tensors[NORM] = tensors[NORM].astype(np.float32)

  path = edit(good(tmp_path / 'a', target), widen)
  only(path, 'doubt', 'bfloat16 and float32')
  numbers = {'a.weight': np.ones((2, 2), np.float32)}
  said = {'torch_dtype': 'bfloat16'}
  (finding,) = tensor_checks.check(numbers, {}, said)
  assert 'says bfloat16, the tensors are in float32' in finding.what


@pytest.mark.parametrize(
  'ids, level, said',
  [
    ([0, 1, 2, 3], 'doubt', 'a default'),
    ([5, 5, 9, 12], 'wrong', '3 different tokens'),
    ([5, 4, 9, 12], 'wrong', 'must ascend'),
    ([5, 9, 12, 64], 'wrong', 'from 5 to 64'),
    ([5, 9, 12, 40], None, ''),
  ],
)
def test_map_of_the_draft_vocabulary(tmp_path, target, ids, level, said):
  path = good(tmp_path / 'a', target, ids=np.asarray([1, 2, 3, 9]))

  def put(config, tensors):
    tensors[MAP] = np.asarray(ids, np.int32)

  edit(path, put)
  if level is None:
    assert found(path) == []
  else:
    only(path, level, said)


def test_map_that_is_missing(tmp_path, target):
  path = good(tmp_path / 'a', target, ids=np.asarray([1, 2, 3, 9]))
  edit(path, lambda config, tensors: tensors.pop(MAP))
  only(path, 'wrong', f'no tensor {MAP}')


# --- checkpoints of other projects ---

UNSAID = ('target_fingerprint', 'target_template', 'does not say label_shift')


def whats(path, **options):
  """Findings besides those that every foreign checkpoint has."""
  findings = found(path, **options)
  return [w for _, w in findings if not any(u in w for u in UNSAID)]


def test_published_layouts_are_told_apart(tmp_path):
  for name, layout, shift in (
    ('zlab_dflash', 'zlab', '0'),
    ('dflash', 'angelspec', '0'),
    ('eagle3', 'eagle', None),
  ):
    checkup = examine.examine(golden(tmp_path / name, name))
    assert checkup.layout == layout
    facts = examine.result(checkup)['facts']
    assert facts.get('label_shift') == shift
    assert facts['target'] == 'not said, fingerprint not said'
    shifts = [f for f in checkup.findings if 'label_shift;' in f.what]
    assert len(shifts) == (shift is not None)


def test_all_that_is_absent_is_named_at_once(tmp_path):
  def drop(config, tensors):
    del config['block_size'], config['rope_theta']
    del config['dflash_config']['target_layer_ids']

  path = golden(tmp_path / 'a', 'zlab_dflash', drop)
  said = ' '.join(whats(path))
  for key in ('block_size', 'rope_theta', 'target_layer_ids'):
    assert f'does not say {key} ' in said
  assert len(whats(path)) == 3
  facts = examine.result(examine.examine(path))['facts']
  for label in ('block_size', 'taps', 'rope base', 'num_draft_tokens'):
    assert facts[label] == 'not said'
  given = {'block_size': 8, 'rope_theta': 1e6, 'target_layer_ids': [0, 1, 2]}
  assert whats(path, extra=given) == []


def test_shapes_are_seen_behind_what_is_absent(tmp_path):
  def drop(config, tensors):
    del config['block_size']
    config['intermediate_size'] = 48

  path = golden(tmp_path / 'a', 'zlab_dflash', drop)
  absent, shapes = whats(path)
  assert 'block_size' in absent
  assert '[32, 64]' in shapes and 'intermediate_size=48' in shapes


def test_map_read_as_offsets_and_as_ids(tmp_path):
  assert not any(
    'd2t' in what for what in whats(golden(tmp_path / 'a', 'eagle3_pruned'))
  )

  def absolute_and_beyond(config, tensors):
    tensors['d2t'] = tensors['d2t'] + 250
    del tensors['t2d']

  path = golden(tmp_path / 'b', 'eagle3_pruned', absolute_and_beyond)
  assert any('d2t is no map' in what for what in whats(path))


@pytest.mark.parametrize('fault', ['absent', 'json', 'weights', 'layout'])
def test_what_cannot_be_read_is_a_user_error(tmp_path, target, fault):
  path = tmp_path / 'a'
  if fault != 'absent':
    good(path, target)
  if fault == 'json':
    (path / 'config.json').write_text('{')
  if fault == 'weights':
    file = path / 'model.safetensors'
    file.write_bytes(file.read_bytes()[:100])
  if fault == 'layout':
    edit(path, lambda c, t: (c.pop('jspec_format'), t.pop(NORM)))
  with pytest.raises(errors.UserError):
    examine.examine(path)
