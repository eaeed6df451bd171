# SPDX-License-Identifier: MIT
"""`jspec bench fit` on CPU devices that stand for those of a slice."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from jspec import errors, opening, slices
from jspec.bench import fit, fit_programs
from jspec.targets import families, reading, sharding
from jspec.testing import toy

EVEN = dict(num_heads=16, num_kv_heads=8, ff_width=64, vocab_size=64)
LOAD = fit_programs.Load(rows=2, nodes=3, context=8, chunk=4, page_size=4)
CHIP = slices.Chip(hbm_bytes=10**9, bytes_per_s=1e9, flops_per_s=1e9)


def mesh_of(num_devices):
  devices = np.array(jax.devices()[:num_devices])
  return sharding.checked(Mesh(devices, (sharding.AXIS,)))


@pytest.fixture
def toys(monkeypatch):
  """Runs the program for a toy; `chip` may be changed."""

  def run(chip=CHIP, num_devices=2, **changes):
    config = toy.target(**EVEN | changes).config
    there = slices.Slice('v5e:1x2', chip, tuple(jax.devices()[:num_devices]))
    monkeypatch.setattr(slices, 'find', lambda name: there)
    monkeypatch.setattr(opening, 'architecture_of', lambda spec: config)
    return fit.run('toy', 'v5e:1x2', LOAD)

  monkeypatch.setattr(fit_programs, 'DTYPE', 'float32')
  return run


@pytest.mark.slow
def test_every_program_is_compiled_and_counted(toys):
  found = toys()
  assert list(found['programs']) == ['decode', 'verify', 'prefill']
  decode, verify = (found['programs'][name] for name in ('decode', 'verify'))
  assert verify['flops'] > 2 * decode['flops']
  assert decode['total_bytes'] >= sum(found['held_bytes'].values())
  assert found['whole'] == []
  assert decode['roofline_s'] == max(
    decode['flops'] / CHIP.flops_per_s, decode['read_bytes'] / CHIP.bytes_per_s
  )
  text = fit.table(found)
  assert text.startswith('toy, float32, on v5e:1x2: 2 devices of 1.00 GB')
  assert 'prefill' in text


@pytest.mark.slow
def test_flops_are_those_of_all_layers(toys):
  few, many = (toys(num_layers=n)['programs']['verify'] for n in (3, 12))
  # Three layers of 12,288 weights each beside a head of 2,048.
  ratio = many['flops'] / few['flops']
  assert 3.4 < ratio < 4.0


@pytest.mark.slow
def test_heads_that_do_not_share_out_are_told(toys):
  found = toys(num_heads=6, num_kv_heads=3)
  assert found['whole'] == ['attention', 'pages']
  assert 'attention and pages whole on each' in fit.table(found)


def test_a_slice_that_is_too_small_is_refused_before_it_compiles(
  toys, monkeypatch
):
  monkeypatch.setattr(slices, 'compiled', lambda *args: pytest.fail('compiles'))
  small = dataclasses.replace(CHIP, hbm_bytes=1000)
  with pytest.raises(errors.UserError, match='toy needs .* on every device'):
    toys(small)


def test_sizes_that_do_not_share_out_are_refused(toys):
  with pytest.raises(errors.UserError, match='does not share out over 2'):
    toys(ff_width=63)


@pytest.mark.slow
def test_programs_do_what_they_are_named_for(monkeypatch):
  monkeypatch.setattr(fit_programs, 'DTYPE', 'float32')
  mesh, whole = mesh_of(2), toy.target(**EVEN)
  target = sharding.place(whole, mesh)
  prompts = jnp.asarray(toy.prompts(2, 7), jnp.int32)

  def arrays(shapes):
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

  named = {
    p.name: p for p in fit_programs.all_programs(whole.config, mesh, LOAD)
  }
  verify = named['verify']
  cache = arrays(verify.arguments[0])
  # Row b owns pages 2 b and 2 b + 1.
  table = dataclasses.replace(
    cache.table, page_ids=jnp.arange(4, dtype=jnp.int32).reshape(2, 2)
  )
  cache = dataclasses.replace(cache, table=table)
  cache = jax.tree.map(
    lambda x, like: jax.device_put(x, like.sharding), cache, verify.arguments[0]
  )
  run = verify.lower(mesh).compile()
  chosen = []
  for start in (0, 3):
    tokens = jax.device_put(
      prompts[:, start : start + 3], verify.arguments[2].sharding
    )
    counts = jax.device_put(
      jnp.full((2,), 3, jnp.int32), verify.arguments[3].sharding
    )
    cache, some = run(cache, target, tokens, counts)
    chosen.append(some)
  positions = jnp.broadcast_to(jnp.arange(6), (2, 6))
  hidden, _ = whole.encode(
    prompts[:, :6], positions, jnp.ones((2, 6), jnp.int32), ()
  )
  want = jnp.argmax(whole.logits(hidden), axis=-1)
  np.testing.assert_array_equal(jnp.concatenate(chosen, axis=1), want)
  np.testing.assert_array_equal(cache.table.lengths, [6, 6])


def read_bytes(config, mesh):
  return {
    program.name: fit_programs.read_bytes(config, program, LOAD)
    for program in fit_programs.all_programs(config, mesh, LOAD)
  }


def test_what_is_read_are_weights_and_pages_without_the_embedding():
  mesh = mesh_of(2)
  config = toy.target(**EVEN).config
  pages = slices.bytes_on_device(fit_programs.cache(config, mesh, LOAD).pages)
  target = reading.abstract(config, dtype=fit_programs.DTYPE, mesh=mesh)
  head = slices.bytes_on_device(target.head)
  weights = slices.bytes_on_device(target)
  weights -= slices.bytes_on_device(target.embedding)
  assert read_bytes(config, mesh) == {
    'decode': weights + pages,
    'verify': weights + pages,
    # One of two rows, and no logits.
    'prefill': weights - head + pages // 2,
  }


def test_a_window_is_read_as_far_as_it_sees():
  mesh = mesh_of(2)
  config = toy.target(**EVEN).config
  pages = slices.bytes_on_device(fit_programs.cache(config, mesh, LOAD).pages)
  some = dataclasses.replace(config, windows=(2, None, 2))
  # Of 24 tokens in three layers, 12 are seen.
  saved = read_bytes(config, mesh)['decode'] - read_bytes(some, mesh)['decode']
  assert saved == pages // 2


def test_shapes_are_known_by_name_and_others_listed():
  found = opening.architecture_of('qwen3_8b')
  assert found == families.presets()['qwen3_8b']
  with pytest.raises(errors.UserError, match='hy3_295b_a21b'):
    opening.architecture_of('qwen3_9b')


def test_a_context_that_is_no_number_of_pages_is_refused():
  with pytest.raises(errors.UserError, match='context 100'):
    fit_programs.Load(context=100)
