# SPDX-License-Identifier: MIT
"""What a user may name as a target or a drafter, and what is refused."""

import dataclasses
import gzip
import json
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from tokenizers import models

from jspec import errors, loading
from jspec.checkpoints import gguf
from jspec.serve import costs_file, described
from jspec.targets import embedded, gguf_model, quantised, reading
from jspec.testing import toy
from jspec.text import chat, tokenizer
from tests import shared_data


def folder(tmp_path, name='llama', vocab_size=256):
  """A golden model with a tokenizer beside it."""
  path = tmp_path / name
  shutil.copytree(shared_data.path(f'goldens/targets/{name}'), path)
  vocab = {f'w{i}': i for i in range(vocab_size)}
  backend = tokenizers.Tokenizer(models.WordLevel(vocab, 'w0'))
  backend.save(str(path / 'tokenizer.json'))
  return path


@pytest.fixture(scope='module')
def loaded(tmp_path_factory):
  path = folder(tmp_path_factory.mktemp('models'))
  return loading.load_target(str(path), progress=False)


def test_folder_gives_a_whole_target(loaded):
  assert loaded.name == 'llama'
  assert loaded.stop_ids == (2,)
  assert loaded.template is None
  assert loaded.tokenizer.vocab_size == 256
  assert loaded.model.num_layers == 4
  assert len(loaded.fingerprint) == 16


def test_fingerprint_is_of_weights_and_shapes_not_of_place(loaded, tmp_path):
  again = loading.load_target(str(folder(tmp_path)), progress=False)
  assert again.fingerprint == loaded.fingerprint
  other = loading.load_target(
    str(folder(tmp_path, 'llama3_rope')), progress=False
  )
  assert other.fingerprint != loaded.fingerprint
  arrays = {'embedding': np.zeros((40, 8), np.float32)}
  config = loaded.model.config
  first = reading.fingerprint(config, arrays)
  arrays['embedding'][0, 0] = 1e-3
  assert reading.fingerprint(config, arrays) != first
  turned = dataclasses.replace(config, rope=other.model.config.rope)
  assert reading.fingerprint(turned, arrays) != reading.fingerprint(
    config, arrays
  )


@pytest.fixture(scope='module')
def smaller(tmp_path_factory):
  path = folder(tmp_path_factory.mktemp('models'))
  spec = f'{path},weights=int8,cache=fp8'
  return loading.load_target(spec, progress=False)


def test_options_of_a_target_follow_its_name(loaded, smaller):
  assert quantised.form_of(smaller.model) == 'int8'
  assert smaller.model.cache_form == 'fp8'
  assert (smaller.name, smaller.options) == ('llama', 'weights=int8,cache=fp8')
  assert smaller.label == 'llama,weights=int8,cache=fp8'
  assert quantised.form_of(loaded.model) is None
  assert (loaded.label, loaded.options) == ('llama', '')


def test_a_target_in_bfloat16_says_so(loaded, tmp_path):
  path = folder(tmp_path)
  spec = f'{path},dtype=bfloat16,weights=fp8'
  found = loading.load_target(spec, progress=False)
  assert found.label == 'llama,dtype=bfloat16,weights=fp8'
  assert found.fingerprint == loaded.fingerprint
  assert found.model.embedding[...].dtype == jnp.bfloat16
  assert quantised.form_of(found.model) == 'fp8'
  usual = loading.load_target(f'{path},dtype=float32')
  assert usual.label == 'llama'


def test_a_drafter_fits_all_forms_of_its_target(loaded, smaller, tmp_path):
  assert smaller.fingerprint == loaded.fingerprint
  checkpoint(tmp_path, loaded)
  assert loading.load_drafter(str(tmp_path), smaller).taps == (1, 2)


def test_programs_and_costs_of_other_forms_are_others():
  """They are kept on disk by a key."""
  named = dict(weights=(None, 'int8', 'fp8'), cache_form=(None, 'int8', 'bf16'))
  made = [
    toy.target(**{name: form})
    for name, forms in named.items()
    for form in forms
  ]
  assert len({described.argument(target) for target in made}) == 5
  assert len({costs_file.form(target) for target in made}) == 5


def test_tokenizer_of_another_model_is_refused(tmp_path):
  path = folder(tmp_path, vocab_size=300)
  with pytest.raises(errors.UserError, match='not of the same model'):
    loading.load_target(str(path), progress=False)


@pytest.mark.parametrize(
  'spec, named',
  [
    ('smollm3', 'unknown target'),
    ('', 'unknown target'),
    ('absent.gguf', 'no such file'),
    ('hf:nobody', 'ORG/NAME'),
    ('hf:/x', 'ORG/NAME'),
    ('smollm2_135m,weights=int3', "weights='int3': expected one of int8, fp8"),
    ('smollm2_135m,cache=int3', "cache='int3': expected one of bf16, int8"),
    ('smollm2_135m,weights=8', 'weights=8: expected one of'),
    ('smollm2_135m,dtype=int8', "dtype='int8': expected one of float32, bf"),
    ('smollm2_135m,bits=8', 'bits: no option of a target; there are dtype'),
    ('smollm2_135m,weights', "cannot read option 'weights'"),
    ('absent,weights=int8', "unknown target 'absent'"),
  ],
)
def test_unknown_target_is_refused(spec, named):
  with pytest.raises(errors.UserError, match=named):
    loading.load_target(spec, progress=False)


def test_options_are_read_before_anything_is_fetched(monkeypatch):
  monkeypatch.setattr(embedded, 'path', lambda show: pytest.fail('fetched'))
  with pytest.raises(errors.UserError, match='bits: no option'):
    loading.load_target(f'{embedded.NAME},bits=8', progress=False)


def test_folder_without_a_model_is_refused(tmp_path):
  with pytest.raises(errors.UserError, match='no config.json'):
    loading.load_target(str(tmp_path), progress=False)


def test_hub_without_network_or_package_is_a_user_error(monkeypatch):
  class Hub:
    @staticmethod
    def snapshot_download(*_, **__):
      raise ConnectionError('cannot reach\nthe hub')

  monkeypatch.setitem(sys.modules, 'huggingface_hub', Hub)
  with pytest.raises(errors.UserError, match='cannot reach') as caught:
    loading.load_target('hf:some/model', progress=False)
  assert '\n' not in str(caught.value)
  monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
  with pytest.raises(errors.UserError, match='huggingface_hub'):
    loading.load_target('hf:some/model', progress=False)


def test_hub_folder_is_loaded_like_any_other(tmp_path, monkeypatch, loaded):
  class Hub:
    @staticmethod
    def snapshot_download(name, **_):
      assert name == 'some/model'
      return str(folder(tmp_path))

  monkeypatch.setitem(sys.modules, 'huggingface_hub', Hub)
  got = loading.load_target('hf:some/model', progress=False)
  assert got.name == 'some/model'
  assert got.fingerprint == loaded.fingerprint


def test_named_drafters(loaded):
  assert loading.load_drafter('none', loaded) is None
  assert loading.load_drafter('ngram', loaded).taps == ()
  assert loading.load_drafter('suffix', loaded).taps == ()


def plugged_in(model, size=0):
  return ('drafter for', model.vocab_size + size)


def test_options_follow_the_name_of_a_drafter(loaded):
  drafter = loading.load_drafter('ngram,num_draft_tokens=5', loaded)
  assert drafter.num_draft_tokens == 5
  spec = 'suffix,tree_size=12,factor=2,offset=-1.5,min_prob=0.2,max_depth=32'
  drafter = loading.load_drafter(f'{spec},scope=global', loaded)
  assert drafter.num_draft_tokens == 12
  assert drafter.config.scope == 'global'
  assert drafter.config.budget(4) == 6
  name = f'{__name__}:plugged_in,size=4'
  assert loading.load_drafter(name, loaded) == ('drafter for', 260)


def test_drafter_is_plugged_in_by_module_and_attribute(loaded):
  got = loading.load_drafter(f'{__name__}:plugged_in', loaded)
  assert got == ('drafter for', 256)


@pytest.mark.parametrize(
  'spec, named',
  [
    ('', 'unknown drafter'),
    ('dflash', 'none, ngram, shipped, suffix'),
    ('absent/folder', 'unknown drafter'),
    ('no_such_module:make', 'cannot import'),
    ('json:no_such_name', 'cannot import'),
    ('json:__doc__', 'not callable'),
    ('none,tree_size=3', 'none has no options'),
    ('ngram,depth=3', 'depth: no option of ngram'),
    ('ngram,num_draft_tokens=few', "'few': expected a whole number"),
    ('ngram,num_draft_tokens=True', 'True: expected a whole number'),
    ('suffix,depth=3', 'depth: no option of suffix; there are num_draft'),
    ('suffix,num_draft_tokens=0', 'num_draft_tokens=0: expected a whole'),
    ('suffix,num_draft_tokens=True', 'expected a whole number'),
    ('suffix,tree_size=2.5', 'tree_size=2.5: expected a whole number'),
    ('suffix,max_depth=1', 'max_depth=1: expected a whole number from 2'),
    ('suffix,max_outputs=0', 'max_outputs=0: expected a whole number from 1'),
    ('suffix,factor=-1', 'factor=-1.0: expected a number from 0'),
    ('suffix,offset=far', "offset='far': expected a number"),
    ('suffix,min_prob=1.1', 'min_prob=1.1: expected a number from 0 to 1'),
    ('suffix,min_expected_accepted=-1', 'accepted=-1.0: expected a number'),
    ('suffix,scope=3', 'scope=3: expected a word'),
    ('suffix,scope=all', "scope='all': expected local or global"),
    ('ngram,num_draft_tokens', 'write each once, as key=value'),
    ('ngram,num_draft_tokens=1,num_draft_tokens=2', 'write each once'),
    (f'{__name__}:plugged_in,depth=3', 'does not take .target, depth.'),
  ],
)
def test_unknown_drafter_is_refused(loaded, spec, named):
  with pytest.raises(errors.UserError, match=named):
    loading.load_drafter(spec, loaded)


def test_folder_without_a_drafter_is_refused(loaded, tmp_path):
  with pytest.raises(errors.UserError, match='holds no drafter'):
    loading.load_drafter(str(tmp_path), loaded)


def checkpoint(path, loaded, template=''):
  from jspec.drafters import borrowed, dflash, interchange

  config = dflash.METHOD.config(
    width=64,
    ff_width=32,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_width=16,
    norm_eps=1e-6,
    rope_base=10000.0,
    taps=(1, 2),
    target_width=64,
    target_num_layers=4,
    vocab_size=256,
    mask_token_id=255,
    block_size=4,
    num_draft_tokens=3,
    label_shift=0,
    draft_vocab_size=None,
  )
  drafter = dflash.METHOD.make(
    config,
    None,
    borrowed.from_target(loaded.model, None),
    jax.random.key(0),
  )
  interchange.save(
    path,
    drafter,
    target_name=loaded.name,
    target_fingerprint=loaded.fingerprint,
    template=template,
  )


def test_drafter_folder_and_workdir_load_for_their_target_only(
  loaded, tmp_path
):
  checkpoint(tmp_path / 'run' / loading.EXPORT, loaded)
  # A run keeps its own config beside the export.
  (tmp_path / 'run' / 'config.json').write_text('{"config": {}, "inputs": {}}')
  for path in (tmp_path / 'run', tmp_path / 'run' / loading.EXPORT):
    drafter = loading.load_drafter(str(path), loaded)
    assert drafter.taps == (1, 2)
  other = dataclasses.replace(loaded, fingerprint='0' * 16)
  with pytest.raises(errors.UserError, match='fingerprint'):
    loading.load_drafter(str(tmp_path / 'run'), other)
  ends = dataclasses.replace(loaded, stop_ids=(255,))
  with pytest.raises(errors.UserError, match='mask_token_id'):
    loading.load_drafter(str(tmp_path / 'run'), ends)


def test_drafter_of_another_template_is_told_in_one_line(
  loaded, tmp_path, capsys
):
  ours, theirs = chat.ChatTemplate('ours'), chat.ChatTemplate('theirs')
  target = dataclasses.replace(loaded, template=ours)
  for trained in (None, ours):  # A checkpoint may not say it.
    checkpoint(tmp_path, loaded, chat.fingerprint(trained))
    loading.load_drafter(str(tmp_path), target)
    assert capsys.readouterr().err == ''
  checkpoint(tmp_path, loaded, chat.fingerprint(theirs))
  for other, own in ((target, chat.fingerprint(ours)), (loaded, 'none')):
    drafter = loading.load_drafter(str(tmp_path), other)
    assert drafter.taps == (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert f'template {chat.fingerprint(theirs)}, but' in line
    assert f'has {own};' in line


def test_drafter_of_another_rendering_is_told_in_one_line(
  loaded, tmp_path, capsys
):
  checkpoint(tmp_path, loaded)
  for said in ({}, {'chat_template_kwargs': {}}):
    (tmp_path / 'provenance.json').write_text(json.dumps(said))
    loading.load_drafter(str(tmp_path), loaded)
    assert capsys.readouterr().err == ''
  said = {'chat_template_kwargs': {'enable_thinking': False}}
  (tmp_path / 'provenance.json').write_text(json.dumps(said))
  loading.load_drafter(str(tmp_path), loaded)
  (line,) = capsys.readouterr().err.splitlines()
  assert 'rendered with enable_thinking=False;' in line


@pytest.fixture(scope='module')
def smollm2():
  """The embedded model's file, where it was fetched already."""
  path = embedded.cache_folder() / embedded.MEMBER.split('/')[-1]
  if not path.is_file():
    pytest.skip('smollm2_135m is not in the cache; load it once to fetch it')
  return gguf.GGUFFile(path)


def test_embedded_tokenizer_and_template_give_the_recorded_ids(smollm2):
  tok = tokenizer.from_gguf(smollm2.metadata, smollm2.where)
  template = chat.from_gguf(smollm2.metadata, tok)
  config = gguf_model.config(smollm2)
  assert tok.vocab_size == config.vocab_size == 49152
  prompts = {}
  with gzip.open(shared_data.path('data/prompts/train.jsonl.gz')) as lines:
    for line in lines:
      prompt = json.loads(line)
      prompts[prompt['id']] = prompt['turns'][0]
  answers = shared_data.path('data/responses/smollm2_135m.jsonl.gz')
  with gzip.open(answers) as lines:
    rows = [
      json.loads(line) for line, _ in zip(lines, range(400), strict=False)
    ]
  for row in rows:
    ids = row['ids'][: row['prompt_len']]
    message = {'role': 'user', 'content': prompts[row['id']]}
    text = template.render([message], add_generation_prompt=True)
    assert tok.encode(text) == ids
    assert tok.decode(ids, skip_special=False) == text
  # The template puts in its own system message unless there is one.
  assert 'You are a helpful AI assistant named SmolLM' in text


def test_embedded_model_repeats_its_recorded_answer(smollm2):
  del smollm2
  loaded = loading.load_target(embedded.NAME, progress=False)
  answers = shared_data.path('data/responses/smollm2_135m.jsonl.gz')
  with gzip.open(answers) as lines:
    rows = [json.loads(line) for line, _ in zip(lines, range(40), strict=False)]
  row = next(r for r in rows if r['temperature'] == 0 and len(r['ids']) <= 128)
  ids = np.zeros((1, 128), np.int32)
  ids[0, : len(row['ids'])] = row['ids']
  positions = jnp.arange(128, dtype=jnp.int32)[None]

  @jax.jit
  def best(model, ids):
    hidden, _ = model.encode(ids, positions, jnp.ones_like(ids), ())
    return model.logits(hidden).argmax(-1)

  got = np.asarray(best(loaded.model, jnp.asarray(ids)))[0]
  start, stop = row['prompt_len'], len(row['ids'])
  np.testing.assert_array_equal(got[start - 1 : stop - 1], ids[0, start:stop])
