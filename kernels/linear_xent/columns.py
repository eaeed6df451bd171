# SPDX-License-Identifier: MIT
"""One chunk of rows: walks over the columns of the head.

The first walk keeps a running maximum m, normaliser z and, for the gradient,
E_q[W] = sum_v q_v W_v, rescaled when the maximum moves; 'ce' (less W_label) and
'lse' need no more. Losses against a teacher need both log-sum-exps before the
first probability, hence a second walk; with all columns in one chunk the logits
of the first are still there. 'lk' takes another, for log sum_v min(p_v, q_v):
as a logarithm throughout, since p and q of an untrained student hardly overlap.

The last chunk of columns is moved back to fit the head; the columns that were
seen before are masked, and no padded copy of a head is ever made.

Throughout, `rows` are (hidden, labels, teacher_hidden) and `heads` are (head,
teacher_head); labels and teacher may be None.
"""

import jax
import jax.numpy as jnp

from jspec.kernels.linear_xent import top

# Sums over all columns, against the teacher.
OF_LAW = ('kl', 'lk', 'reverse_kl', 'tv')


def losses(rows, heads, *, names, size, top_k, with_grad):
  """Values, hits, gradients and statistics of some rows.

  Args:
    rows: hidden [*batch, R, D], labels [*batch, R] and teacher_hidden.
    heads: head [D, V] and teacher_head.
    names: losses wanted.
    size: columns of a chunk.
    top_k: columns that the losses of `top` look at.
    with_grad: whether to make the gradients.

  Returns:
    {name: [*batch, R]}; whether the label is a hit, or None; {name: gradient
    for hidden}; and what `head_gradient` needs to know of the rows.
  """
  hidden, labels, _ = rows
  num_chunks = -(-heads[0].shape[1] // size)
  at = _chunks(rows, heads, size)
  second = [name for name in OF_LAW if name in names]
  tops = [name for name in top.NAMES if name in names]
  # The gradient is a - s q; of these, s is known after the last chunk only.
  late = [n for n in second if n != 'kl' and num_chunks > 1]
  needs_mean = with_grad and bool(late or {'ce', 'lse'} & set(names))
  # With all columns at hand the label's own is subtracted among the weights.
  is_direct = needs_mean and num_chunks == 1 and 'lse' not in names

  total = _walk(
    lambda i: _first(at(i), labels, needs_mean, is_direct), _merge, num_chunks
  )
  stats = {x: total[x][0] + jnp.log(total[x][1]) for x in 'qp' if x in total}
  values, grads, is_hit = {'lse': stats['q']}, {}, None
  if labels is not None:
    values['ce'] = stats['q'] - total['label']
    is_hit = (total['label'] >= total['q'][0])[..., 0]
  if is_direct:
    grads['ce'] = total['mean'] / total['q'][1]
  elif needs_mean:
    grads['lse'] = total['mean'] / total['q'][1]
    if 'ce' in names:
      column = jnp.moveaxis(jnp.take(heads[0], labels, axis=1), 0, -1)
      grads['ce'] = grads['lse'] - column

  if 'lk' in second:
    stats['overlap'] = _overlap(at, stats, num_chunks)
  found, of_top = _of_top(at, stats, tops, top_k, num_chunks)
  if second or (tops and with_grad):
    sums, products = _walk(
      lambda i: (
        _second(at(i), stats, second, late, with_grad),
        _products(at(i), stats, found, of_top) if with_grad else {},
      ),
      lambda a, b: jax.tree.map(jnp.add, a, b),
      num_chunks,
    )
    for name in second:
      values[name], stats[name], *product = sums[name]
      if with_grad:
        mean = stats[name] * grads['lse'] if name in late else 0
        grads[name] = product[0] - mean
    grads |= products
  for name in tops:
    values[name] = of_top[name][0]
  if 'lk' in second:
    values['lk'] = -stats['overlap']

  values = {name: values[name][..., 0] for name in names}
  grads = {name: grads[name].astype(hidden.dtype) for name in names if grads}
  return values, is_hit, grads, stats


def head_gradient(rows, heads, stats, cotangents, d_head, *, size, top_k):
  """Adds the gradient of the head [D, V] that comes from these rows.

  Args:
    rows: as above.
    heads: as above.
    stats: as `losses` returned it.
    cotangents: of the losses, {name: [*batch, R]}.
    d_head: the sum so far, float32.
    size: columns of a chunk.
    top_k: as above.
  """
  at = _chunks(rows, heads, size)
  hidden, labels, _ = rows
  num_chunks = -(-heads[0].shape[1] // size)
  # Found anew: kept from the first pass they would be k numbers for every row.
  tops = [name for name in top.NAMES if name in cotangents]
  found, of_top = _of_top(at, stats, tops, top_k, num_chunks)

  def body(i, d_head):
    chunk = at(i)
    logits, _, _, _, start, fresh = chunk
    q = jnp.exp(logits - stats['q'])
    total = 0
    for name, cotangent in cotangents.items():
      if name == 'ce':
        index = start + jnp.arange(q.shape[-1])
        is_label = (index == labels[..., None]) & fresh
        gradient = q - is_label
      elif name == 'lse':
        gradient = q
      elif name in tops:
        gradient = _spread(chunk, found, of_top[name], stats)
      else:
        _, a = _terms(name, chunk, stats)
        gradient = a - stats[name] * q
      total = total + cotangent[..., None] * gradient
    more = jnp.einsum(
      '...D,...V->DV',
      hidden,
      total.astype(hidden.dtype),
      preferred_element_type=jnp.float32,
    )
    more += jax.lax.dynamic_slice_in_dim(d_head, start, more.shape[1], axis=1)
    return jax.lax.dynamic_update_slice_in_dim(d_head, more, start, axis=1)

  return jax.lax.fori_loop(0, num_chunks, body, d_head)


def _chunks(rows, heads, size):
  """A function that gives chunk i; a single one is made once.

  A chunk is (logits, teacher's logits, columns of the head, of the teacher's,
  first column, which of them are new).
  """
  hidden, _, teacher_hidden = rows
  head, teacher_head = heads
  length = head.shape[1]

  def at(i):
    start = jnp.minimum(i * size, length - size)
    fresh = start + jnp.arange(size) >= i * size

    def logits(hidden, head):
      if head is None:
        return None, None
      columns = head
      if size < length:
        columns = jax.lax.dynamic_slice_in_dim(head, start, size, axis=1)
      scores = jnp.einsum(
        '...D,DV->...V', hidden, columns, preferred_element_type=jnp.float32
      )
      if length % size:
        scores = jnp.where(fresh, scores, -jnp.inf)
      return scores, columns

    own, columns = logits(hidden, head)
    teacher, teacher_columns = logits(teacher_hidden, teacher_head)
    return own, teacher, columns, teacher_columns, start, fresh

  if size < length:
    return at
  everything = at(0)
  return lambda i: everything


def _walk(of_chunk, merge, num_chunks):
  """Merges `of_chunk(i)` over all chunks."""
  first = of_chunk(0)
  if num_chunks == 1:
    return first
  return jax.lax.fori_loop(
    1, num_chunks, lambda i, state: merge(state, of_chunk(i)), first
  )


def _first(chunk, labels, needs_mean, is_direct):
  """Maximum and normaliser, the label's logit, the sum behind E_q[W].

  If `is_direct`, the sum behind E_q[W] - W_label.
  """
  logits, teacher, columns, _, start, fresh = chunk

  def lse_parts(logits):
    top = jnp.max(logits, axis=-1, keepdims=True)
    unnormed = jnp.exp(logits - top)
    return (top, jnp.sum(unnormed, axis=-1, keepdims=True)), unnormed

  out = {}
  out['q'], unnormed = lse_parts(logits)
  if teacher is not None:
    out['p'], _ = lse_parts(teacher)
  if labels is not None:
    place = labels[..., None] - start
    nearest = jnp.clip(place, 0, logits.shape[-1] - 1)
    found = jnp.take_along_axis(logits, nearest, axis=-1)
    out['label'] = jnp.where(place == nearest, found, -jnp.inf)
  if is_direct:
    is_label = jnp.arange(logits.shape[-1]) == labels[..., None]
    unnormed = jnp.where(is_label, unnormed - out['q'][1], unnormed)
  if needs_mean:
    out['mean'] = _product(unnormed, columns)
  return out


def _merge(a, b):
  """Two results of `_first` as one."""
  out = {}
  for name in ('q', 'p'):
    if name not in a:
      continue
    top = jnp.maximum(a[name][0], b[name][0])
    scales = [jnp.exp(x[name][0] - top) for x in (a, b)]
    z = a[name][1] * scales[0] + b[name][1] * scales[1]
    out[name] = (top, z)
    if name == 'q' and 'mean' in a:
      out['mean'] = a['mean'] * scales[0] + b['mean'] * scales[1]
  if 'label' in a:
    out['label'] = jnp.maximum(a['label'], b['label'])
  return out


def _overlap(at, stats, num_chunks):
  """log sum_v min(p_v, q_v) [*batch, R, 1]."""

  def of_chunk(i):
    logits, teacher, *_ = at(i)
    least = jnp.minimum(logits - stats['q'], teacher - stats['p'])
    return jax.nn.logsumexp(least, axis=-1, keepdims=True)

  return _walk(of_chunk, jnp.logaddexp, num_chunks)


def _of_top(at, stats, names, top_k, num_chunks):
  """The teacher's largest columns, and {name: loss and gradient on them}."""
  if not names:
    return None, {}
  found = _walk(lambda i: top.largest(at(i), top_k), top.merge, num_chunks)
  return found, {name: top.loss(name, found, stats) for name in names}


def _spread(chunk, found, of_top, stats):
  """The gradient for the logits of a loss of `top`."""
  logits, _, _, _, start, fresh = chunk
  _, weights, s = of_top
  dense = top.spread(weights, found[2], start, logits.shape[-1])
  return jnp.where(fresh, dense, 0) - s * jnp.exp(logits - stats['q'])


def _products(chunk, stats, found, of_top):
  """{name: gradient for hidden} of the losses of `top`, of one chunk."""
  return {
    name: _product(_spread(chunk, found, one, stats), chunk[2])
    for name, one in of_top.items()
  }


def _second(chunk, stats, names, late, with_grad):
  """{name: (value, s, gradient)} of the chunk, as sums over its columns.

  The gradient of a late loss lacks its second term, - s E_q[W].
  """
  logits, _, columns, *_ = chunk
  out = {}
  for name in names:
    value, a = _terms(name, chunk, stats)
    value, s = (jnp.sum(x, axis=-1, keepdims=True) for x in (value, a))
    out[name] = (value, s)
    if with_grad:
      if name not in late:
        factor = -1 if name == 'kl' else s
        a = a - factor * jnp.exp(logits - stats['q'])
      out[name] += (_product(a, columns),)
  return out


def _terms(name, chunk, stats):
  """What a loss sums over the columns, and a of its gradient a - s q."""
  logits, teacher, *_ = chunk
  logq, logp = logits - stats['q'], teacher - stats['p']
  p, q = jnp.exp(logp), jnp.exp(logq)
  if name == 'lk':
    # The smaller one moves; at a tie half of it, as in 'tv'. Its value is the
    # logarithm of a sum, and is there already.
    share = ((logq < logp) + (logq <= logp).astype(jnp.float32)) / 2
    a = -share * jnp.exp(logq - stats['overlap'])
    return jnp.zeros_like(a), jnp.where(share > 0, a, 0)
  if name == 'tv':
    return jnp.abs(p - q) / 2, jnp.sign(q - p) * q / 2
  if name == 'kl':
    # Where p is 0 nothing is added, even if the logarithm is infinite.
    return jnp.where(p > 0, p * (logp - logq), 0), -p
  value = jnp.where(q > 0, q * (logq - logp), 0)
  return value, value


def _product(weights, columns):
  """weights [*batch, R, V] columns^T, summed in float32."""
  return jnp.einsum(
    '...V,DV->...D',
    weights.astype(columns.dtype),
    columns,
    preferred_element_type=jnp.float32,
  )
