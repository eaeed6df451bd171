# SPDX-License-Identifier: MIT
"""From logits to a law, and from a law and one uniform to a token.

The law of a row is, in Hugging Face's order,

  z = logits / temperature
  top-k   keep z where fewer than k tokens are larger
  top-p   keep z where the mass of larger tokens, after top-k, is below p
  min-p   keep z where exp(z - max z) >= min_p
  law     softmax of the kept z

Each filter keeps every token that ties with the last one it keeps, so the law
does not depend on how a sort would order equals. Temperature 0 is the argmax;
the lowest id wins ties. Logits that are not finite (a mask's -inf, a defect's
nan) have probability 0 everywhere. A row without a finite logit has no law: its
token is -1, its probabilities are 0.

The vocabulary is never sorted. All filters are thresholds, found by bisection
(`thresholds.py`), and a token is drawn by inverse CDF in two levels, block sums
and then the tokens of one block. All arithmetic is float32, and a uniform is a
multiple of 2**-23: the probability of a token is realised to about 3e-7,
so a token of less mass may come up a little more often or not at all, while the
mass of a tail of many such tokens is right. A token of probability 0 is never
drawn.
"""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jspec import errors
from jspec.decode import thresholds
from jspec.typing import Array, Float, Int, UInt32

BLOCK = 128
MIN_TEMPERATURE = 1e-5  # below, (z - max z) / temperature leaves float32


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
  """How one request wants its tokens, on the host.

  Attributes:
    temperature: 0 takes the most likely token.
    top_k: keep the k most likely tokens; 0 keeps all.
    top_p: keep the most likely tokens that hold this mass; 1 keeps all.
    min_p: keep tokens this likely relative to the most likely; 0 keeps all.
    seed: the request's randomness, whole; same seed, same tokens.
    max_tokens: most tokens to generate.
    stop_ids: token ids that end the output.
  """

  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  seed: int = 0
  max_tokens: int = 128
  stop_ids: tuple[int, ...] = ()

  def __post_init__(self):
    t = self.temperature
    _check(
      _is_real(t) and (t == 0 or MIN_TEMPERATURE <= t < math.inf),
      f'temperature {t!r}: give 0 (greedy) or a number from {MIN_TEMPERATURE}',
    )
    _check(
      _is_integer(self.top_k) and 0 <= self.top_k < 2**31,
      f'top_k {self.top_k!r}: give a whole number, 0 to keep all tokens',
    )
    _check(
      _is_real(self.top_p) and 0 < self.top_p <= 1,
      f'top_p {self.top_p!r}: give a number above 0 and at most 1',
    )
    _check(
      _is_real(self.min_p) and 0 <= self.min_p <= 1,
      f'min_p {self.min_p!r}: give a number from 0 to 1',
    )
    _check(
      _is_integer(self.seed) and 0 <= self.seed < 2**32,
      f'seed {self.seed!r}: give a whole number from 0 to 4294967295',
    )
    _check(
      _is_integer(self.max_tokens) and self.max_tokens >= 1,
      f'max_tokens {self.max_tokens!r}: give a whole number from 1',
    )
    _check(
      isinstance(self.stop_ids, tuple)
      and all(_is_integer(i) and i >= 0 for i in self.stop_ids),
      f'stop_ids {self.stop_ids!r}: give a tuple of token ids',
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sampling:
  """The sampling parameters of a batch, one entry a row, on the device."""

  temperature: Float[Array, 'B']
  top_k: Int[Array, 'B']
  top_p: Float[Array, 'B']
  min_p: Float[Array, 'B']
  seeds: UInt32[Array, 'B']


def stack(params: Sequence[SamplingParams]) -> Sampling:
  """Puts the parameters of a batch of requests on the device."""
  # Unlike `jnp.asarray`, this compiles nothing.
  return Sampling(**jax.device_put(columns(params)))


def columns(params: Sequence[SamplingParams]) -> dict[str, np.ndarray]:
  """The fields of `Sampling`, on the host."""

  def column(name, dtype):
    return np.array([getattr(p, name) for p in params], dtype)

  return dict(
    temperature=column('temperature', np.float32),
    top_k=column('top_k', np.int32),
    top_p=column('top_p', np.float32),
    min_p=column('min_p', np.float32),
    seeds=column('seed', np.uint32),
  )


def sample(
  logits: Float[Array, 'B V'],
  sampling: Sampling,
  uniforms: Float[Array, 'B'],
) -> Int[Array, 'B']:
  """Draws one token a row; `uniforms` are in [0, 1)."""
  return lax.cond(
    jnp.any(sampling.temperature > 0),
    lambda: draw(weights(logits, sampling), uniforms),
    lambda: argmax(logits),
  )


def law(logits: Float[Array, 'B V'], sampling: Sampling) -> Float[Array, 'B V']:
  """The probabilities that `sample` draws from."""
  return normalise(weights(logits, sampling))


def weights(
  logits: Float[Array, 'B V'], sampling: Sampling
) -> Float[Array, 'B V']:
  """The law up to a factor: 1 for a row's most likely token."""
  values = _finite(logits)
  best = jnp.max(values, axis=-1, keepdims=True)
  best = jnp.where(best > -jnp.inf, best, 0.0)
  is_greedy = sampling.temperature <= 0
  temperature = jnp.where(is_greedy, 1.0, sampling.temperature)
  z = (values - best) / temperature[:, None]
  w = jnp.exp(z)
  top_k = jnp.where(is_greedy, 0, sampling.top_k)
  top_p = jnp.where(is_greedy, 1.0, sampling.top_p)
  least = lax.cond(
    jnp.any((top_k > 0) | (top_p < 1)),
    lambda: thresholds.top_k_top_p(z, w, top_k, top_p),
    lambda: jnp.full_like(temperature, -jnp.inf),
  )
  kept = (z >= least[:, None]) & (w >= sampling.min_p[:, None])
  sampled = jnp.where(kept, w, 0.0)
  ids = jnp.arange(logits.shape[-1], dtype=jnp.int32)
  # A row that has no law keeps weights 0: argmax says -1, which is no id.
  greedy = (ids == argmax(logits)[:, None]).astype(w.dtype)
  return jnp.where(is_greedy[:, None], greedy, sampled)


def normalise(w: Float[Array, 'B V']) -> Float[Array, 'B V']:
  """Divides by the sum; a row of zeros stays zero."""
  total = thresholds.fixed_sum(w)[:, None]
  return w / jnp.where(total > 0, total, 1.0)


def argmax(logits: Float[Array, 'B V']) -> Int[Array, 'B']:
  """The lowest id among the largest finite logits; -1 where none is finite.

  Two levels, because XLA's own argmax is a scalar loop on a CPU (8 times the
  time at 49,152 tokens).
  """
  blocks = _blocks(logits, -jnp.inf)
  block_max = jnp.max(_finite(blocks), axis=-1)
  best = jnp.max(block_max, axis=-1, keepdims=True)
  block = _first(block_max == best)
  inside = _finite(_take(blocks, block))
  token = block * BLOCK + _first(inside == best)
  return jnp.where(best[:, 0] > -jnp.inf, token, -1)


def draw(
  w: Float[Array, 'B V'], uniforms: Float[Array, 'B']
) -> Int[Array, 'B']:
  """Draws a token in proportion to `w` (>= 0); -1 from a row of zeros."""
  blocks = _blocks(w, 0.0)
  sums = jnp.sum(blocks, axis=-1)
  cdf = jnp.cumsum(sums, axis=-1)
  block, rest = _invert(sums, cdf, uniforms * cdf[:, -1])
  inside = _take(blocks, block)
  offset, _ = _invert(inside, jnp.cumsum(inside, axis=-1), rest)
  return jnp.where(cdf[:, -1] > 0, block * BLOCK + offset, -1)


def _invert(w, cdf, mass):
  """The first index whose CDF exceeds `mass`, and the mass left for inside it.

  Rounding may put `mass` at the very end, or dent the CDF (it is summed in log
  steps), so only indices of positive weight can win.
  """
  index = jnp.arange(w.shape[-1], dtype=jnp.int32)
  is_last = jnp.max(jnp.where(w > 0, index, 0), axis=-1)
  exceeds = (w > 0) & (cdf > mass[:, None])
  chosen = jnp.where(jnp.any(exceeds, axis=-1), _first(exceeds), is_last)
  before = jnp.take_along_axis(cdf, jnp.maximum(chosen - 1, 0)[:, None], 1)
  before = jnp.where(chosen > 0, before[:, 0], 0.0)
  return chosen, jnp.maximum(mass - before, 0.0)


def _first(is_true):
  """Index of the first True of each row; 0 where there is none."""
  size = is_true.shape[-1]
  index = jnp.arange(size, dtype=jnp.int32)
  first = jnp.min(jnp.where(is_true, index, size), axis=-1)
  return jnp.where(first < size, first, 0)


def _blocks(x, filler):
  padding = -x.shape[-1] % BLOCK
  x = jnp.pad(x, ((0, 0), (0, padding)), constant_values=filler)
  return x.reshape(x.shape[0], -1, BLOCK)


def _take(blocks, index):
  return jnp.take_along_axis(blocks, index[:, None, None], axis=1)[:, 0]


def _finite(logits):
  logits = logits.astype(jnp.float32)
  return jnp.where(jnp.isfinite(logits), logits, -jnp.inf)


def _check(is_good, message):
  if not is_good:
    raise errors.UserError(message)


def _is_integer(x):
  return isinstance(x, int | np.integer) and not isinstance(x, bool)


def _is_real(x):
  return _is_integer(x) or isinstance(x, float | np.floating)
