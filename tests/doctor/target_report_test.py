# SPDX-License-Identifier: MIT
"""`jspec doctor TARGET`: what is said of every family, and what is a target."""

import json
import shutil

import numpy as np
import pytest
import tokenizers
from tokenizers import models

from jspec.checkpoints import safetensors
from jspec.cli import main
from jspec.doctor import target_report
from tests import shared_data, tiny_model
from tests.targets import goldens

SAID = {
  'llama': ('4 layers all tokens', 'silu of 32'),
  'qwen2': ('biases', 'head tied'),
  'qwen3_moe': ('2 of 4 experts of 16, softmax', '1 layers silu of 32'),
  'mistral': ('2 layers 8 tokens',),
  'gemma3': ('5 layers 8 tokens, 1 layers all', 'with a window base 10000'),
  'gpt_oss': ('sinks', 'yarn by 4'),
  'deepseek_v3': ('latents of 24', '1 of 2 groups', '96 numbers a token'),
}


def folder(tmp_path, name):
  path = tmp_path / name
  shutil.copytree(shared_data.path(f'goldens/targets/{name}'), path)
  backend = tokenizers.Tokenizer(
    models.WordLevel({f'w{i}': i for i in range(256)}, 'w0')
  )
  backend.save(str(path / 'tokenizer.json'))
  return path


@pytest.mark.parametrize('name', SAID)
def test_a_golden_is_said_to_be_what_it_is(name, tmp_path, capsys):
  path = folder(tmp_path, name)
  assert target_report.is_target(str(path))
  code = main.main(['doctor', str(path)])
  out = capsys.readouterr().out
  assert code == 1 and 'doubt: it has no chat template' in out
  assert 'wrong' not in out
  assert f'a target, {goldens.fields(name)["model_type"]} layout' in out
  assert "2 'w2'" in out
  for text in SAID[name]:
    assert text in out, out


def test_format_of_calls_and_their_end_are_read_off_the_template(tmp_path):
  path = folder(tmp_path, 'gpt_oss')
  words = ['<|return|>', '<|call|>', *(f'w{i}' for i in range(254))]
  backend = tokenizers.Tokenizer(
    models.WordLevel({word: i for i, word in enumerate(words)}, 'w0')
  )
  backend.save(str(path / 'tokenizer.json'))
  template = path / 'chat_template.jinja'
  template.write_text('{# <|channel|>commentary #}')
  facts = target_report.examine(str(path))['facts']
  assert facts['tool calls'] == 'harmony'
  assert "0 '<|return|>', 1 '<|call|>'" in facts['ends answers']
  template.write_text('{# nothing #}')
  facts = target_report.examine(str(path))['facts']
  assert facts['tool calls'] == 'no format that is known'
  assert '<|call|>' not in facts['ends answers']


def test_forms_that_were_asked_for_are_said_with_their_memory(tmp_path, capsys):
  path = folder(tmp_path, 'llama')

  def said(options):
    assert target_report.is_target(f'{path}{options}')
    main.main(['doctor', f'{path}{options}'])
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines if 'weights  ' in line or 'cache  ' in line]

  plain = said('')
  assert 'float32, ' in plain[0] and plain[0].endswith(' kB')
  # Keys and values of 4 layers, 2 heads of 16 numbers.
  assert '256 numbers a token, float32, 1.0 kB a token' in plain[1]
  small = said(',weights=fp8,cache=int8')
  assert 'fp8 for ' in small[0] and '% of them, else float32' in small[0]
  assert '256 numbers a token, int8, 288 B a token' in small[1]
  half = said(',dtype=bfloat16')
  assert 'bfloat16, ' in half[0]
  assert '256 numbers a token, bfloat16, 512 B a token' in half[1]
  assert main.main(['doctor', f'{path},weights=int2']) == 2
  assert "weights='int2'" in capsys.readouterr().err


def test_a_whole_target_is_code_0_and_a_missing_tensor_is_named(
  tmp_path, capsys
):
  path = tiny_model.write(tmp_path)
  assert main.main(['doctor', str(path)]) == 0
  assert 'with tools' not in capsys.readouterr().out
  tensors = tiny_model.tensors()
  del tensors['model.norm.weight']
  safetensors.write(path, tensors, tiny_model.fields())
  assert main.main(['doctor', str(path)]) == 1
  assert 'tensor model.norm.weight is missing' in capsys.readouterr().out


def test_a_drafter_with_its_targets_config_is_none(tmp_path):
  path = tiny_model.write(tmp_path)
  assert target_report.is_target(str(path))
  few = {'fc.weight': np.zeros((2, 2)), 'model.norm.weight': np.zeros(2)}
  safetensors.write(path, few, tiny_model.fields())
  assert not target_report.is_target(str(path))
  (path / 'config.json').write_text(json.dumps({'jspec_format': 1}))
  assert not target_report.is_target(str(path))
  assert not target_report.is_target(str(tmp_path / 'absent'))


def test_flags_of_drafters_are_refused_for_a_target(tmp_path, capsys):
  path = tiny_model.write(tmp_path)
  words = ['doctor', str(path), '--target', str(path)]
  assert main.main(words) == 2
  assert 'is a target' in capsys.readouterr().err
