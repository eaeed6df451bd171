# SPDX-License-Identifier: MIT
"""Targets read straight to their place: the same arrays, and little memory."""

import json
import tracemalloc

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from jspec import errors
from jspec.checkpoints import names, safetensors
from jspec.targets import families, reading, sharding, tables, transformer
from tests.targets import goldens
from tests.targets.sharding_test import mesh_of


def reader(name, source=None):
  said = goldens.fields(name)
  family = families.find(said, name)
  config = family.config(said, name)
  source = source or safetensors.SafetensorsFolder(goldens.folder(name))
  source = family.prepare(source)
  ignored = family.ignored(config, source)
  return reading.Reader(config, family.rules(config), source, ignored=ignored)


def flat(target):
  state = nnx.to_flat_state(nnx.state(target))
  return {path: variable[...] for path, variable in state}


def assert_same(one, other, rtol=0.0):
  one, other = flat(one), flat(other)
  assert one.keys() == other.keys()
  for path, value in one.items():
    assert value.dtype == other[path].dtype
    assert value.sharding == other[path].sharding, path
    if rtol:
      np.testing.assert_allclose(value, other[path], rtol, err_msg=str(path))
    else:
      np.testing.assert_array_equal(value, other[path], err_msg=str(path))


@pytest.mark.few(3)
@pytest.mark.parametrize('is_split', [False, True])
@pytest.mark.parametrize('name', goldens.NAMES)
def test_the_arrays_are_those_of_the_files(name, is_split):
  found = reading.read(reader(name), is_split=is_split)
  assert_same(found, goldens.load(name, is_split=is_split))
  assert reader(name).fingerprint() == reading.fingerprint(
    *goldens.arrays(name)
  )


# The others in the slow suite.
QUICK = [
  name
  if name in ('llama', 'gemma3')
  else pytest.param(name, marks=pytest.mark.slow)
  for name in goldens.NAMES
]
# Sizes that share out over so many devices.
DEVICES = dict.fromkeys(('qwen3_moe', 'gpt_oss', 'deepseek_v3'), 2)


@pytest.mark.parametrize(
  'is_split', [False, pytest.param(True, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize('name', QUICK)
def test_on_a_mesh_they_lie_as_if_placed_later(name, is_split):
  mesh = mesh_of(DEVICES.get(name, 8))
  found = reading.read(reader(name), mesh=mesh, is_split=is_split)
  placed = sharding.place(goldens.load(name, is_split=is_split), mesh)
  assert_same(found, placed)
  assert sharding.place(found, mesh) is found
  golden = goldens.golden(name)
  logits, _, _ = goldens.run(found, golden['input_ids'])
  np.testing.assert_allclose(logits, golden['logits'], atol=1e-4, rtol=0)


def stored(path, config, dtype=ml_dtypes.bfloat16):
  """A Llama folder with random weights, in several files."""
  rng = np.random.default_rng(0)
  shapes = transformer.array_shapes(config)
  files, where = {}, {}
  for rule in tables.table(config, tables.Names()):
    leaf = np.zeros(shapes[rule.leaf], np.bool_)[rule.box]
    shape = rule.convert.to_file(leaf).shape
    file = f'part-{len(where) % 3}.safetensors'
    fan_in = shape[-1] if len(shape) == 2 else 1
    values = (rng.normal(size=shape) / fan_in**0.5).astype(dtype)
    files.setdefault(file, {})[rule.source] = values
    where[rule.source] = file
  path.mkdir(parents=True)
  for file, tensors in files.items():
    safetensors.write(path / file.split('.')[0], tensors, {})
    (path / file.split('.')[0] / safetensors.FILE).rename(path / file)
  index = json.dumps({'weight_map': where})
  (path / safetensors.INDEX).write_text(index)
  return safetensors.SafetensorsFolder(path)


def config_of(**changes):
  sizes = dict(
    *(goldens.fields('llama'),),
    hidden_size=256,
    intermediate_size=512,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=16,
    vocab_size=1024,
  )
  said = sizes | changes
  return families.find(said, 'llama').config(said, 'llama')


def read_stored(source, config, **how):
  found = reading.Reader(
    config, tables.table(config, tables.Names()), source, ignored=()
  )
  return reading.read(found, **how)


def peak_of(work):
  tracemalloc.start()
  try:
    result = work()
    return result, tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()


def test_host_memory_is_the_model_once(tmp_path):
  config = config_of(num_hidden_layers=3)
  source = stored(tmp_path / 'model', config)
  mesh = mesh_of(8)
  target, peak = peak_of(
    lambda: read_stored(source, config, mesh=mesh, dtype='bfloat16')
  )
  size = sum(value.nbytes for value in flat(target).values())
  shard = max(value.nbytes for value in flat(target).values()) / 8
  # Devices here are the host, which keeps what they hold.
  assert peak < size + 2 * shard + 300_000
  # The other way to the same mesh holds it all in float32 besides.
  rules = tables.table(config, tables.Names())

  def whole():
    arrays = tables.load(config, rules, source, ignored=[])
    return sharding.place(transformer.Transformer(config, arrays), mesh)

  assert peak_of(whole)[1] > 1.9 * size


class Recording:
  """A source that remembers how much was asked for."""

  def __init__(self, source):
    self.where, self._source = source.where, source
    self.asked = {}

  def names(self):
    return self._source.names()

  def shape(self, name):
    return self._source.shape(name)

  def read(self, name):
    raise AssertionError(f'{name} was read whole')

  def part(self, name, box):
    values = self._source.part(name, box)
    self.asked.setdefault(name, []).append(values.size)
    return values


def test_every_shard_reads_its_own_rows_and_each_row_is_read_once(tmp_path):
  config = config_of(num_hidden_layers=2)
  source = Recording(stored(tmp_path / 'model', config))
  assert isinstance(source, names.Source)
  read_stored(source, config, mesh=mesh_of(8))
  for name, sizes in source.asked.items():
    size = np.prod(source.shape(name))
    is_norm = 'norm' in name
    assert sizes == [size] if is_norm else [size // 8] * 8, name


@pytest.mark.parametrize(
  'mesh', [None, pytest.param(8, marks=pytest.mark.slow)]
)
def test_weights_stay_in_the_dtype_asked_for(tmp_path, mesh):
  config = config_of(num_hidden_layers=2)
  source = stored(tmp_path / 'model', config)
  mesh = mesh and mesh_of(mesh)
  wide = read_stored(source, config, mesh=mesh)
  kept = read_stored(source, config, mesh=mesh, dtype='bfloat16')
  for path, value in flat(kept).items():
    assert value.dtype == jnp.bfloat16
    want = flat(wide)[path]
    assert want.dtype == jnp.float32
    np.testing.assert_array_equal(value.astype(jnp.float32), want)
  ids = np.random.default_rng(0).integers(0, 1024, (2, 9))
  logits, hidden, _ = goldens.run(kept, ids)
  assert (logits.dtype, hidden.dtype) == (jnp.float32, jnp.bfloat16)
  want, _, _ = goldens.run(wide, ids)
  assert np.abs(logits - want).max() < 0.05 * np.abs(want).max()


@pytest.mark.parametrize('name', QUICK)
def test_every_family_runs_in_bfloat16(name):
  target = reading.read(reader(name), dtype='bfloat16')
  golden = goldens.golden(name)
  logits, _, _ = goldens.run(target, golden['input_ids'])
  spread = np.abs(golden['logits']).max()
  errors_at = np.abs(logits - golden['logits']).max(axis=-1) / spread
  assert np.median(errors_at) < 0.02
  # Rounding may send a token whose experts are nearly tied to others.
  assert (errors_at < 0.1).mean() > 0.95


def test_another_dtype_is_refused():
  with pytest.raises(errors.UserError, match="dtype='float16': expected one"):
    reading.read(reader('llama'), dtype='float16')


@pytest.mark.parametrize('harm', ['absent', 'short', 'other'])
def test_a_file_that_is_not_whole_is_one_clear_line(tmp_path, harm):
  path = tmp_path / 'model'
  stored(path, config_of(num_hidden_layers=2))
  part = path / 'part-1.safetensors'
  if harm == 'absent':
    part.unlink()
  elif harm == 'short':
    part.write_bytes(part.read_bytes()[:-100])
  else:
    part.write_bytes((path / 'part-0.safetensors').read_bytes())
  with pytest.raises(errors.UserError, match='part-1') as caught:
    safetensors.SafetensorsFolder(path)
  assert '\n' not in str(caught.value)
  assert 'fetch' in str(caught.value)


def test_jax_takes_the_buffers_of_a_cpu_as_they_are():
  from jspec.checkpoints import host_memory

  host = host_memory.empty((300, 700), np.float32)
  placed = jax.device_put(host)
  assert placed.unsafe_buffer_pointer() == host.ctypes.data
