# SPDX-License-Identifier: MIT
"""Rows in fewer bits: how far off, and that keeping them changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.cache import forms, paged


def rows(seed=0, shape=(3, 40, 64)):
  """Rows of very different sizes, one of zeros."""
  rng = np.random.default_rng(seed)
  sizes = np.exp(rng.uniform(-12, 12, (*shape[:-1], 1)))
  made = (rng.normal(size=shape) * sizes).astype(np.float32)
  made[0, 0] = 0
  return jnp.asarray(made)


@pytest.mark.parametrize(
  'form, bound',
  # Half a step of 1 / 127, or of a mantissa of 3 bits, or of 8; and what a
  # scale of 8 bits cuts off of the largest.
  [('int8', 1 / 254 + 1 / 512), ('fp8', 1 / 16 + 1 / 512), ('bf16', 1 / 256)],
)
def test_rows_are_kept_to_the_bits_of_their_form(form, bound):
  x = rows()
  kept = forms.as_kept(x, form)
  largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
  off = jnp.abs(kept - x) / jnp.maximum(largest, 1e-30)
  assert 0.2 * bound < float(jnp.max(off)) <= bound
  assert kept.dtype == x.dtype
  np.testing.assert_array_equal(kept[0, 0], 0)


@pytest.mark.parametrize('form', forms.NAMES)
@pytest.mark.parametrize('is_jitted', [False, True])
def test_rows_that_were_kept_are_kept_as_they_are(form, is_jitted):
  keep = lambda x: forms.as_kept(x, form)  # noqa: E731
  keep = jax.jit(keep) if is_jitted else keep
  for seed in range(4):
    once = keep(rows(seed))
    np.testing.assert_array_equal(keep(once), once)


def test_scales_of_more_bits_would_not_be_stable():
  """Why they are bfloat16: the same with float32 changes rows kept twice."""

  def keep(x):
    scale = jnp.max(jnp.abs(x), axis=-1, keepdims=True) / 127
    return jnp.round(x / jnp.maximum(scale, 1e-30)) * scale

  once = keep(rows())
  assert not np.array_equal(keep(once), once)


def test_no_form_changes_nothing():
  x = rows()
  assert forms.as_kept(x, None) is x


@pytest.mark.parametrize('form', ['int8', 'fp8'])
def test_pages_give_back_what_attention_saw(form):
  k = jax.random.normal(jax.random.key(0), (2, 2, 7, 3, 8))
  cache = paged.PagedCache(
    paged.init_pages(2, 8, 4, 3, 8, form=form), paged.contiguous_table(2, 4)
  )
  path = jnp.broadcast_to(jnp.arange(7), (2, 7))
  cache = jax.jit(paged.PagedCache.commit)(
    cache, k, -3 * k, path, jnp.array([7, 5])
  )
  pages = cache.pages
  assert pages.k.dtype == forms.DTYPES[form]
  for pool, scales, wrote in (
    (pages.k, pages.k_scale, k),
    (pages.v, pages.v_scale, -3 * k),
  ):
    read = np.asarray(forms.dequantised(pool, scales))
    kept = np.asarray(forms.as_kept(wrote, form))
    for row, length in ((0, 7), (1, 5)):
      for position in range(length):
        page, place = divmod(position, 4)
        np.testing.assert_array_equal(
          read[:, 4 * row + page, :, place], kept[:, row, position]
        )
    assert not np.any(read[:, 5, :, 1:])  # Row 1 ends before.


def test_unknown_form_is_refused():
  assert forms.checked(None) is None
  with pytest.raises(
    errors.UserError, match="cache='int4': expected one of bf"
  ):
    forms.checked('int4')
