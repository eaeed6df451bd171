# SPDX-License-Identifier: MIT
"""Bad input ends with one `error:` line, code 2, and nothing half-written."""

import gzip

import gguf
import numpy as np
import pytest

from jspec.checkpoints import safetensors
from jspec.targets import embedded
from tests import tiny_model
from tests.cli.bad_input import CONFIG, words, write


@pytest.mark.parametrize(
  'flags, said',
  [
    (['--max-tokens', '-1'], '--max-tokens'),
    (['--max-tokens', '0'], '--max-tokens'),
    (['--max-tokens', 'many'], '--max-tokens'),
    (['--rows', '0'], '--rows'),
    (['--limit', '-3'], '--limit'),
    (['--temperature', '-1'], 'temperature -1.0'),
    (['--temperature', 'nan'], 'temperature nan'),
    (['--temperature', 'hot'], '--temperature'),
    (['--top-p', '0'], 'top_p 0.0'),
    (['--top-k', '-1'], 'top_k -1'),
    (['--min-p', '2'], 'min_p 2.0'),
    (['--seed', '-1'], 'seed -1'),
    (['--json', 'absent/out.json'], 'absent/out.json'),
    (['--json', '.'], 'name a file'),
    (['--nonsense'], '--nonsense'),
  ],
  ids=' '.join,
)
def test_flag_is_refused(refused, flags, said):
  if len(flags) == 2:
    flags = [flags[0] + '=' + flags[1]]
  assert said in refused('generate', '--prompt', 'w1', *flags)


@pytest.mark.parametrize(
  'line, said',
  [
    ([], 'PROGRAM'),
    (['nonsense'], 'nonsense'),
    (['generate'], '--prompt'),
    (['bench', 'step', '--nodes', '1,x'], '--nodes'),
    (['train', '--config', f'{CONFIG}', '--nonsense'], '--nonsense'),
    (['train', '--config', f'{CONFIG}', '--compile-only'], '--topology'),
    (['bench', 'fit', '--target', 'x', '--topology', 'v9:2x2'], 'v5e:4x4'),
    (['data', 'regen', '--out', 'answers.json'], '.jsonl'),
    (['data', 'regen', '--out', 'absent/answers.jsonl'], 'absent'),
  ],
  ids=' '.join,
)
def test_command_line_is_refused(refused, line, said):
  assert said in refused(*line)


# --- targets ----------------------------------------------------------------
def answer(refused, target, *more):
  return refused('generate', '--prompt', 'w1 w3', '--target', target, *more)


def test_unknown_target(refused):
  said = answer(refused, 'nowhere')
  assert "unknown target 'nowhere'" in said and 'smollm2_135m' in said


def test_unknown_field_of_a_config(refused, tmp_path):
  fields = tiny_model.fields(sliding_window=64)
  folder = tiny_model.write(tmp_path / 'm', config=fields)
  said = answer(refused, folder)
  assert 'sliding_window' in said and str(folder / 'config.json') in said


def test_unknown_and_missing_tensors_are_named_together(refused, tmp_path):
  weights = tiny_model.tensors()
  weights['model.layers.0.odd.weight'] = weights.pop('model.norm.weight')
  folder = tiny_model.write(tmp_path / 'm', weights=weights)
  said = answer(refused, folder)
  assert 'model.layers.0.odd.weight is not known' in said
  assert 'model.norm.weight is missing' in said
  assert str(folder) in said


def test_tensor_of_another_shape(refused, tmp_path):
  weights = tiny_model.tensors()
  weights['model.norm.weight'] = np.ones((3,), np.float32)
  said = answer(refused, tiny_model.write(tmp_path / 'm', weights=weights))
  assert 'model.norm.weight has shape (3,), not (16,)' in said


def test_tokenizer_of_a_larger_vocabulary(refused, tmp_path):
  said = answer(refused, tiny_model.write(tmp_path / 'm', num_words=65))
  assert 'ids up to 64' in said and 'only 64 rows' in said


@pytest.mark.parametrize(
  'name', ['config.json', 'tokenizer.json', 'tokenizer_config.json']
)
@pytest.mark.parametrize('text', ['{"a": ', '[]', '\xff'])
def test_broken_file_of_a_folder(refused, tmp_path, name, text):
  folder = tiny_model.write(tmp_path / 'm')
  (folder / name).write_bytes(text.encode('latin-1'))
  assert str(folder / name) in answer(refused, folder)


@pytest.mark.parametrize('name', ['tokenizer.json', safetensors.FILE])
def test_missing_file_of_a_folder(refused, tmp_path, name):
  folder = tiny_model.write(tmp_path / 'm')
  (folder / name).unlink()
  assert name in answer(refused, folder)


@pytest.mark.parametrize('share', [0.01, 0.5, 0.99])
def test_truncated_safetensors(refused, tmp_path, share):
  folder = tiny_model.write(tmp_path / 'm')
  file = folder / safetensors.FILE
  data = file.read_bytes()
  file.write_bytes(data[: int(share * len(data))])
  assert f'{file} is truncated' in answer(refused, folder)


def test_truncated_gguf_at_any_place(refused, tmp_path):
  path = tmp_path / 'm.gguf'
  writer = gguf.GGUFWriter(path, 'llama')
  writer.add_block_count(2)
  writer.add_token_list([f'w{i}' for i in range(64)])
  for i in range(3):
    writer.add_tensor(f'blk.{i}', np.zeros((16, 32), np.float32))
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  data = path.read_bytes()
  for size in (0, 3, 4, 12, 30, 200, 800, 1000, len(data) // 2, len(data) - 1):
    path.write_bytes(data[:size])
    said = answer(refused, path)
    assert str(path) in said, size
    assert 'truncated' in said or 'not a GGUF file' in said, size
  path.write_bytes(data)
  assert 'llama.' in answer(refused, path)


def test_absent_gguf(refused):
  assert 'absent.gguf' in answer(refused, 'absent.gguf')


def test_model_file_with_another_hash(refused, tmp_path, monkeypatch):
  monkeypatch.setenv('JSPEC_CACHE', str(tmp_path / 'cache'))
  monkeypatch.setattr(embedded, 'NUM_BYTES', 8)
  file = tmp_path / 'cache' / embedded.MEMBER.split('/')[-1]
  file.parent.mkdir()
  file.write_bytes(b'GGUFabcd')
  said = answer(refused, embedded.NAME)
  assert str(file) in said and 'sha256' in said and 'delete it' in said


# --- drafters ---------------------------------------------------------------
@pytest.mark.parametrize(
  'spec, said',
  [
    ('nonsense', 'none, ngram, shipped'),
    ('absent/folder', 'absent/folder'),
    ('no_such_module:make', 'no_such_module:make'),
    ('json:absent', 'json:absent'),
    ('.', 'holds no drafter'),
  ],
)
def test_unknown_drafter(refused, target, spec, said):
  assert said in answer(refused, target, '--drafter', spec)


def test_drafter_of_another_target(refused, target, tmp_path):
  from jspec import loading
  from jspec.drafters import interchange
  from jspec.train import build

  other = loading.load_target(
    str(tiny_model.write(tmp_path / 'other', seed=1)), progress=False
  )
  import jax

  drafter = build.dflash(
    other,
    dict(num_layers=1, taps=(0, 1), mask_token_id=3),
    None,
    jax.random.key(0),
  )
  interchange.save(
    tmp_path / 'drafter',
    drafter,
    target_name='other',
    target_fingerprint=other.fingerprint,
  )
  said = answer(refused, target, '--drafter', tmp_path / 'drafter')
  assert 'made for target other' in said and other.fingerprint in said


# --- prompts ----------------------------------------------------------------
@pytest.mark.parametrize('text', ['', '  ', '\n', '\udcff'])
def test_empty_prompt_on_the_command_line(refused, target, text):
  said = refused('generate', '--prompt', text, '--target', target)
  assert '--prompt' in said and 'write the message' in said


@pytest.mark.parametrize(
  'line, said',
  [
    ({'prompt': ''}, 'field `prompt`'),
    ({'turns': ['w1', ' ']}, '`turns` entry 2'),
    ({'turns': []}, 'field `turns`'),
    ({'id': 'x'}, '`turns`'),
    ('{"prompt": "w1"', 'is not JSON'),
    ('["w1"]', 'not a JSON object'),
    ({'id': 'good', 'prompt': 'w1'}, 'repeats'),
  ],
)
@pytest.mark.parametrize('program', ['generate', 'eval lossless', 'data regen'])
def test_bad_line_of_a_prompt_file(refused, tmp_path, program, line, said):
  path = write(tmp_path / 'p.jsonl', {'id': 'good', 'prompt': 'w1'}, line)
  more = ['--out', tmp_path / 'a.jsonl'] if program == 'data regen' else []
  error = refused(*program.split(), '--prompts', path, *more)
  assert said in error and f'{path} line 2' in error


def test_prompt_files_that_cannot_be_read(refused, tmp_path):
  for bad in ('absent.jsonl', tmp_path):
    assert str(bad) in refused('generate', '--prompts', bad)
  path = tmp_path / 'p.jsonl'
  path.write_bytes(b'{"prompt": "\xff"}\n')
  assert 'UTF-8' in refused('generate', '--prompts', path)
  path = tmp_path / 'p.jsonl.gz'
  path.write_bytes(gzip.compress(b'{"prompt": "w1"}\n' * 99)[:-9])
  assert str(path) in refused('generate', '--prompts', path)
  assert 'no prompts' in refused(
    'generate', '--prompts', write(tmp_path / 'none.jsonl', '')
  )


@pytest.mark.parametrize('program', ['generate', 'eval lossless', 'data regen'])
def test_prompt_longer_than_the_context(refused, target, tmp_path, program):
  path = write(
    tmp_path / 'p.jsonl',
    {'id': 'short', 'prompt': 'w1'},
    {'id': 'long', 'prompt': words(tiny_model.MAX_LEN)},
  )
  more = ['--out', tmp_path / 'a.jsonl'] if program == 'data regen' else []
  said = refused(
    *program.split(),
    '--prompts',
    path,
    '--target',
    target,
    '--drafter',
    'ngram',
    *more,
  )
  assert "prompt 'long'" in said and f'is {tiny_model.MAX_LEN}' in said


def test_second_turn_that_no_longer_fits(decodes, refused, target, tmp_path):
  turns = [words(60), words(60)]
  path = write(tmp_path / 'p.jsonl', {'id': 'talk', 'turns': turns})
  said = refused(
    *('data', 'regen', '--prompts', path, '--target', target),
    *('--max-tokens', '8', '--rows', '1', '--out', tmp_path / 'a.jsonl'),
  )
  assert "prompt 'talk', turn 2" in said


def test_several_turns_without_a_template(refused, tmp_path):
  folder = tiny_model.write(tmp_path / 'm')
  (folder / 'tokenizer_config.json').unlink()
  path = write(tmp_path / 'p.jsonl', {'id': 'talk', 'turns': ['w1', 'w3']})
  said = refused('generate', '--prompts', path, '--target', folder)
  assert 'no chat template' in said and "'talk'" in said


def test_context_of_a_benchmark(refused, target):
  said = refused('bench', 'step', '--target', target, '--context', '127')
  assert '--context' in said


# --- answers ----------------------------------------------------------------
def test_answers_file_of_others_stays_as_it_is(
  decodes, refused, target, tmp_path
):
  path = write(tmp_path / 'p.jsonl', {'prompt': 'w1'})
  out = write(tmp_path / 'notes.jsonl', {'id': 'p#1', 'target': 'other'})
  out.write_text(out.read_text() + 'no line end')
  said = refused(
    *('data', 'regen', '--prompts', path, '--target', target),
    *('--rows', '1', '--out', out),
  )
  assert str(out) in said and "target='other'" in said


# --- training ---------------------------------------------------------------
