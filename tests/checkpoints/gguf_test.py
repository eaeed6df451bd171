# SPDX-License-Identifier: MIT
"""GGUF files: every supported quantisation, and what is refused."""

import gguf as gguf_package
import numpy as np
import pytest

from jspec import errors
from jspec.checkpoints import gguf, gguf_header, names

TYPE = gguf_package.GGMLQuantizationType


def write(path, tensors, metadata=()):
  """Writes tensors {name: (stored array, quantisation or None)}."""
  writer = gguf_package.GGUFWriter(path, 'llama')
  for add, key, value in metadata:
    getattr(writer, add)(key, value)
  for name, (values, kind) in tensors.items():
    writer.add_tensor(name, values, raw_dtype=kind)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


# Half a step of the quantisation, for values in [-1, 1].
@pytest.mark.parametrize(
  'name, tolerance',
  [
    ('F32', 0),
    ('F16', 5e-4),
    ('BF16', 4e-3),
    ('Q8_0', 5e-3),
    ('Q4_0', 0.13),
    ('Q4_1', 0.07),
    ('Q5_0', 0.07),
    ('Q5_1', 0.035),
  ],
)
def test_values_come_back_within_a_quantisation_step(tmp_path, name, tolerance):
  values = np.random.default_rng(0).uniform(-1, 1, (6, 64)).astype(np.float32)
  kind = TYPE[name]
  stored = gguf_package.quants.quantize(values, kind)
  file = gguf.GGUFFile(
    write(tmp_path / 'x.gguf', {'w': (stored, kind if name != 'F32' else None)})
  )
  assert file.shape('w') == (6, 64)
  got = file.read('w')
  assert got.dtype == np.float32
  np.testing.assert_allclose(got, values, atol=tolerance, rtol=0)
  if tolerance:
    assert np.abs(got - values).max() > tolerance / 50


def half(value):
  return np.array([value], '<f2').view(np.uint8)


def pack_scales(scales, mins):
  """llama.cpp's 8 + 8 six-bit numbers in 12 bytes."""
  out = np.zeros(12, np.uint8)
  out[:4] = (scales[:4] & 63) | ((scales[4:] >> 4) << 6)
  out[4:8] = (mins[:4] & 63) | ((mins[4:] >> 4) << 6)
  out[8:] = (scales[4:] & 15) | ((mins[4:] & 15) << 4)
  return out


def k_block(name, rng):
  """One super-block of 256 values, with its values by the definition."""
  if name == 'Q6_K':
    d, q = 0.03125, rng.integers(0, 64, 256)
    scales = rng.integers(-30, 30, 16)
    low, high = np.zeros(128, np.uint8), np.zeros(64, np.uint8)
    for i, value in enumerate(q):
      half_idx, within = divmod(i, 128)
      quarter, lane = divmod(within, 32)
      low[half_idx * 64 + (quarter % 2) * 32 + lane] |= (value & 15) << (
        4 * (quarter // 2)
      )
      high[half_idx * 32 + lane] |= (value >> 4) << (2 * quarter)
    data = [low, high, scales.astype(np.int8).view(np.uint8), half(d)]
    return np.concatenate(data), d * np.repeat(scales, 16) * (q - 32)
  d, d_min = 0.0625, 0.03125
  scales, mins = rng.integers(0, 64, 8), rng.integers(0, 64, 8)
  q = rng.integers(0, 16 if name == 'Q4_K' else 32, 256)
  low, high = np.zeros(128, np.uint8), np.zeros(32, np.uint8)
  for i, value in enumerate(q):
    group, lane = divmod(i, 32)
    low[(group // 2) * 32 + lane] |= (value & 15) << (4 * (group % 2))
    high[lane] |= (value >> 4) << group
  data = [half(d), half(d_min), pack_scales(scales, mins)]
  data += [low] if name == 'Q4_K' else [high, low]
  wanted = d * np.repeat(scales, 32) * q - d_min * np.repeat(mins, 32)
  return np.concatenate(data), wanted


@pytest.mark.parametrize('name', ['Q4_K', 'Q5_K', 'Q6_K'])
def test_k_quants_follow_their_definition(tmp_path, name):
  rng = np.random.default_rng(1)
  blocks = [k_block(name, rng) for _ in range(4)]
  stored = np.stack([data for data, _ in blocks]).reshape(2, -1)
  wanted = np.stack([values for _, values in blocks]).reshape(2, 512)
  path = write(tmp_path / 'x.gguf', {'w': (stored, TYPE[name])})
  got = gguf.GGUFFile(path).read('w')
  np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def test_unsupported_quantisation_is_named(tmp_path):
  stored = np.zeros((1, 66), np.uint8)
  path = write(tmp_path / 'x.gguf', {'w': (stored, TYPE.IQ2_XXS)})
  with pytest.raises(errors.UserError, match='IQ2_XXS'):
    gguf.GGUFFile(path)


def test_metadata_comes_as_python_values(tmp_path):
  path = write(
    tmp_path / 'x.gguf',
    {'w': (np.zeros((2, 32), np.float32), None)},
    [
      ('add_uint32', 'llama.block_count', 3),
      ('add_array', 'tokenizer.ggml.tokens', ['a', 'b']),
    ],
  )
  metadata = gguf.GGUFFile(path).metadata
  assert metadata['llama.block_count'] == 3
  assert metadata['tokenizer.ggml.tokens'] == ['a', 'b']
  assert metadata['general.architecture'] == 'llama'
  assert not any(key.startswith('GGUF.') for key in metadata)


@pytest.mark.parametrize('keep', [5, 20, 60, 0.5, 0.999])
def test_truncated_file_is_a_user_error(tmp_path, keep):
  path = write(
    tmp_path / 'x.gguf', {'w': (np.ones((64, 64), np.float32), None)}
  )
  data = path.read_bytes()
  size = keep if keep > 1 else int(len(data) * keep)
  path.write_bytes(data[:size])
  with pytest.raises(errors.UserError, match='truncated'):
    gguf.GGUFFile(path).read('w')


def test_other_file_and_absent_file_are_user_errors(tmp_path):
  path = tmp_path / 'x.gguf'
  with pytest.raises(errors.UserError, match='no such file'):
    gguf.GGUFFile(path)
  path.write_bytes(b'PK\x03\x04 something else')
  with pytest.raises(errors.UserError, match='not a GGUF file'):
    gguf.GGUFFile(path)


def test_duplicate_tensor_is_refused(tmp_path):
  path = write(
    tmp_path / 'x.gguf',
    {n: (np.ones((2, 32), np.float32), None) for n in ('wa', 'wb')},
  )
  data = path.read_bytes()
  path.write_bytes(data.replace(b'wb', b'wa'))
  with pytest.raises(errors.UserError, match='wa'):
    gguf.GGUFFile(path)


def test_the_header_says_what_the_package_reads_in_it(tmp_path):
  path = write(
    tmp_path / 'x.gguf',
    {
      'w': (np.zeros((2, 32), np.float32), None),
      'b': (np.zeros(3, np.float16), None),
    },
    [
      ('add_array', 'numbers', [1, -2, 3]),
      ('add_array', 'reals', [0.5, 0.25]),
      ('add_bool', 'yes', True),
      ('add_float32', 'small', 1e-5),
      ('add_int8', 'least', -7),
      ('add_array', 'texts', ['', 'ä', 'Ġthe']),
      ('add_uint64', 'large', 1 << 40),
    ],
  )
  want = gguf_package.GGUFReader(path)
  fields, tensors = gguf_header.parse(path.read_bytes())
  assert fields == {
    key: field.contents()
    for key, field in want.fields.items()
    if not key.startswith('GGUF.')
  }
  for tensor in want.tensors:
    found = tensors[tensor.name]
    assert found.shape == tuple(reversed(tensor.shape.tolist()))
    assert (found.kind, found.start) == (tensor.tensor_type, tensor.data_offset)
    assert found.num_bytes == tensor.n_bytes


@pytest.mark.parametrize(
  'at, change, said',
  [
    (4, b'\x09', 'version 9'),
    (8, b'\xff', 'within the header'),
    (16, b'\xff', 'within the header'),
    (24, b'\xff\xff\xff\xff\xff\xff\xff\x7f', 'within the header'),
  ],
)
def test_a_damaged_header_is_a_user_error(tmp_path, at, change, said):
  path = write(tmp_path / 'x.gguf', {'w': (np.ones((2, 32), 'f4'), None)})
  data = path.read_bytes()
  path.write_bytes(data[:at] + change + data[at + len(change) :])
  with pytest.raises(errors.UserError, match=said):
    gguf.GGUFFile(path)


@pytest.mark.parametrize('kind', ['Q4_1', 'Q5_1'])
def test_columns_are_written_where_that_is_known(tmp_path, kind):
  values = np.random.default_rng(0).uniform(-1, 1, (8, 64)).astype(np.float32)
  stored = gguf_package.quants.quantize(values, TYPE[kind])
  file = gguf.GGUFFile(write(tmp_path / 'x.gguf', {'w': (stored, TYPE[kind])}))
  assert isinstance(file, names.Packed)
  rows, every = slice(2, 6), slice(0, 64)
  out = np.zeros((64, 4), np.float32)
  back = lambda found: found[::-1]  # noqa: E731
  has = file.columns('w', (rows, every), back, out)
  assert has == (kind == 'Q4_1')
  if has:
    np.testing.assert_array_equal(out, file.part('w', (rows, every))[::-1].T)
  # Parts of rows, and numbers of other types, are the business of `part`.
  assert not file.columns('w', (rows, slice(0, 32)), back, out[:32])
  assert not file.columns('w', (rows, every), back, out.astype(np.float16))
