# SPDX-License-Identifier: MIT
"""`jspec import` and `jspec export`, from folder to folder."""

import json

import numpy as np
import pytest

from jspec import loading
from jspec.cli import interchange, main
from jspec.drafters.formats import folder, layouts
from tests import tiny_model
from tests.drafters.formats import tiny

# The drafter of `tiny`, for the target of `tiny_model`.
FITTING = {
  'vocab_size': tiny_model.VOCAB,
  'hidden_size': tiny_model.WIDTH,
  'target_num_hidden_layers': tiny_model.LAYERS,
  'target_layer_ids': [0, 1, 3],
  'mask_token_id': tiny_model.VOCAB - 1,
}


@pytest.fixture(scope='module')
def target(tmp_path_factory):
  return tiny_model.write(tmp_path_factory.mktemp('models') / 'tiny')


@pytest.fixture
def zlab(tmp_path):
  """A foreign folder, and the native config and tensors it was made from."""
  config, tensors = tiny.native('dflash', **FITTING)
  foreign, theirs = layouts.from_native(config, tensors, 'zlab')
  del foreign['num_draft_tokens'], foreign['label_shift']
  folder.write(tmp_path / 'theirs', foreign, theirs)
  return tmp_path / 'theirs', config, tensors


def run(*words):
  return main.main([str(word) for word in words])


def test_import_then_export_gives_the_same_folder(zlab, tmp_path, capsys):
  source, config, tensors = zlab
  assert run('import', source, tmp_path / 'ours') == 0
  assert folder.read(tmp_path / 'ours')[0] == config
  assert tiny.same(folder.read(tmp_path / 'ours')[1], tensors)
  out = capsys.readouterr().out
  assert 'zlab layout, dflash' in out
  assert 'block_size 4, num_draft_tokens 3, label_shift 0' in out
  assert '--target would bind it' in out
  words = ['export', tmp_path / 'ours', tmp_path / 'back', '--layout', 'zlab']
  assert run(*words) == 0
  assert tiny.same(folder.read(tmp_path / 'back')[1], folder.read(source)[1])
  assert 'wrote' in capsys.readouterr().out


def test_imported_drafter_loads_with_its_target(zlab, target, tmp_path, capsys):
  source, config, tensors = zlab
  assert run('import', source, tmp_path / 'ours', '--target', target) == 0
  loaded = loading.load_target(str(target))
  found, _ = folder.read(tmp_path / 'ours')
  assert found.pop('target_fingerprint') == loaded.fingerprint
  assert found.pop('target_name') == 'tiny'
  assert found == config
  drafter = loading.load_drafter(str(tmp_path / 'ours'), loaded)
  np.testing.assert_array_equal(
    drafter.final_norm[...], tensors['final_norm.weight']
  )


def test_copies_come_from_the_target_and_are_checked(
  zlab, target, tmp_path, capsys
):
  source, _, _ = zlab
  other = tmp_path / 'other'
  other.mkdir()
  tiny_model.write(other, seed=3)
  run('import', source, tmp_path / 'ours')
  words = ['export', tmp_path / 'ours', tmp_path / 'a', '--layout', 'angelspec']
  assert run(*words) == 2
  assert 'give --target' in capsys.readouterr().err
  assert run(*words, '--target', target) == 0
  _, tensors = folder.read(tmp_path / 'a')
  np.testing.assert_array_equal(
    tensors['embed_tokens.weight'],
    tiny_model.tensors()['model.embed_tokens.weight'],
  )
  capsys.readouterr()
  assert run('import', tmp_path / 'a', tmp_path / 'b') == 0
  assert 'embed_tokens.weight (not checked' in capsys.readouterr().out
  words = ['import', tmp_path / 'a', tmp_path / 'c', '--target']
  assert run(*words, target) == 0
  assert (
    "embed_tokens.weight (equal to the target's)" in capsys.readouterr().out
  )
  assert run('import', tmp_path / 'a', tmp_path / 'd', '--target', other) == 2
  assert "not this target's" in capsys.readouterr().err
  assert not (tmp_path / 'd').exists()
  # A drafter that knows its target is not given another's copies.
  words = ['export', tmp_path / 'c', tmp_path / 'e', '--layout', 'angelspec']
  assert run(*words, '--target', other) == 2
  assert 'fingerprint' in capsys.readouterr().err
  assert not (tmp_path / 'e').exists()


def test_set_gives_what_the_config_lacks(zlab, tmp_path, capsys):
  source, config, _ = zlab
  path = source / 'config.json'
  foreign = json.loads(path.read_text())
  del foreign['block_size'], foreign['num_target_layers']
  path.write_text(json.dumps(foreign))
  words = ['import', source, tmp_path / 'ours']
  assert run(*words) == 2
  err = capsys.readouterr().err
  assert err.startswith(f'error: {source}: ') and err.count('\n') == 1
  assert '--set block_size=8 --set target_num_hidden_layers=NUMBER' in err
  assert not (tmp_path / 'ours').exists()
  given = ['--set', 'block_size=4', '--set', 'target_num_hidden_layers=4']
  assert run(*words, *given) == 0
  assert folder.read(tmp_path / 'ours')[0] == config


def test_layout_can_be_forced(zlab, tmp_path, capsys):
  source, _, _ = zlab
  words = ['import', source, tmp_path / 'ours', '--layout', 'deepspec']
  assert run(*words) == 0
  assert 'label_shift 1' in capsys.readouterr().out
  assert folder.read(tmp_path / 'ours')[0]['num_draft_tokens'] == 4


@pytest.mark.parametrize('program', ['import', 'export'])
def test_nothing_is_overwritten(zlab, tmp_path, capsys, program):
  source, _, _ = zlab
  full = tmp_path / 'full'
  full.mkdir()
  (full / 'file').write_text('x')
  words = [program, source, full]
  words += ['--layout', 'zlab']
  assert run(*words) == 2
  assert 'is not empty' in capsys.readouterr().err
  assert [p.name for p in full.iterdir()] == ['file']


def test_foreign_folder_is_not_exported(zlab, tmp_path, capsys):
  source, _, _ = zlab
  words = ['export', source, tmp_path / 'x', '--layout', 'vllm']
  assert run(*words) == 2
  assert 'native drafter folder' in capsys.readouterr().err


def test_lost_options_are_told(tmp_path, capsys):
  config, tensors = tiny.native('dflash', tree_size=8)
  folder.write(tmp_path / 'ours', config, tensors)
  words = ['export', tmp_path / 'ours', tmp_path / 'x', '--layout', 'zlab']
  assert run(*words) == 0
  assert 'the zlab layout does not say tree_size' in capsys.readouterr().out


@pytest.mark.parametrize(
  'words',
  [
    ['import', 'a'],
    ['import', 'a', 'b', '--layout', 'gguf'],
    ['export', 'a', 'b'],
  ],
)
def test_bad_flags_end_with_code_2(words, capsys):
  with pytest.raises(SystemExit) as stop:
    main.parse(words)
  assert stop.value.code == 2


def test_set_reads_json_or_text():
  given = interchange.given(['a=8', 'b=[1,2]', 'c=offset', 'd=false', 'e=x=y'])
  assert given == {'a': 8, 'b': [1, 2], 'c': 'offset', 'd': False, 'e': 'x=y'}


@pytest.mark.parametrize('pairs', [['a'], ['a=1', 'a=2'], ['=3'], ['a b=1']])
def test_bad_set_is_refused(pairs, tmp_path, capsys):
  words = [word for pair in pairs for word in ('--set', pair)]
  assert run('import', tmp_path, tmp_path / 'x', *words) == 2
  assert '--set' in capsys.readouterr().err


def test_layouts_are_those_there_are():
  assert sorted(interchange.LAYOUTS) == sorted(layouts.LAYOUTS)


def test_a_target_is_exported_as_a_folder_that_loads_as_the_same(
  target, tmp_path, capsys
):
  assert run('export', target, tmp_path / 'hf', '--layout', 'hf') == 0
  assert '1 files of tensors' in capsys.readouterr().out
  first, second = (
    loading.load_target(str(path)) for path in (target, tmp_path / 'hf')
  )
  assert second.fingerprint == first.fingerprint
  assert second.stop_ids == first.stop_ids
  assert second.template == first.template
  words = ['export', target, tmp_path / 'bf16', '--layout', 'hf']
  assert run(*words, '--dtype', 'bfloat16') == 0
  half = (tmp_path / 'bf16' / 'model.safetensors').stat().st_size
  assert half < 0.6 * (tmp_path / 'hf' / 'model.safetensors').stat().st_size


@pytest.mark.parametrize(
  'more, said',
  [
    (['hf', '--target', 'x'], 'leave --target out'),
    (['zlab', '--dtype', 'bfloat16'], '--dtype is for --layout hf'),
  ],
)
def test_flags_of_the_other_kind_of_export_are_refused(
  target, tmp_path, capsys, more, said
):
  assert run('export', target, tmp_path / 'x', '--layout', *more) == 2
  assert said in capsys.readouterr().err


def test_a_target_in_eight_bits_is_not_exported(target, tmp_path, capsys):
  spec = f'{target},weights=int8'
  assert run('export', spec, tmp_path / 'x', '--layout', 'hf') == 2
  assert 'leave weights=int8 out' in capsys.readouterr().err
