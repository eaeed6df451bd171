# SPDX-License-Identifier: MIT
"""What one round costs, where the time goes, and how far the floor is.

  floor      the least time for one node of one row, see `bench.roofline`
  stack      the decoder stack's matmuls alone, no attention, nothing cached
  head       the LM head and the argmax over the vocabulary
  attention  score minus stack
  sampling   one decision of a row, for each way of sampling

Where attention is over latents, the stack is not told from attention. `compare`
runs the same weights through `transformers` in the same process.
Every figure is a median, but ratios to a floor are of the best seen, as both of
its rates are: what else runs on the machine slows those less. Only ratios of
one run mean anything on a shared machine.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jspec import tree
from jspec.bench import programs, roofline, timing
from jspec.decode import sampling
from jspec.decode.verify import api as verify
from jspec.nn import stack

SAMPLERS = {
  'greedy': sampling.SamplingParams(),
  'temperature': sampling.SamplingParams(temperature=0.8),
  'top_p': sampling.SamplingParams(temperature=0.8, top_p=0.9),
  'top_k': sampling.SamplingParams(temperature=0.8, top_k=50),
}


def run(
  loaded: Any,
  drafter: Any,
  *,
  rows: Sequence[int],
  nodes: Sequence[int],
  context: int,
  repeats: int,
  compare: bool = False,
  samplers: Mapping[str, sampling.SamplingParams] = SAMPLERS,
  on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
  """Measures everything; see the module docstring.

  Args:
    loaded: a `loading.LoadedTarget` or a `random_target.RandomTarget`.
    drafter: who drafts, or None; its round is measured at one row.
    rows: rows of the grid.
    nodes: nodes a row of the grid.
    context: cached tokens in every row.
    repeats: timed repetitions of each figure.
    compare: also time `transformers`, which must be installed.
    samplers: ways of sampling that are timed; they depend on the vocabulary
      alone.
    on_progress: called with (figures done, figures in all).
  """
  model = loaded.model
  total = len(rows) * len(nodes) + 6 + compare
  done = 0

  def tick():
    nonlocal done
    done += 1
    if on_progress is not None:
      on_progress(done, total)

  result: dict[str, Any] = {'target': loaded.label, 'context': context}
  roof = roofline.measure(model, context)
  result['weight_bytes'] = roof.held_bytes
  result['read_bytes'] = roof.weight_bytes + roof.row_bytes
  result['read_gb_per_s'] = roof.bytes_per_s / 1e9
  result['gflop_per_s'] = roof.flop_per_s / 1e9
  result['floor_ms'] = roof.seconds(1, 1) * 1e3
  tick()
  plain, best, compile_s = _round_ms(model, None, context, repeats)
  result['plain_round_ms'], result['compile_s'] = plain, compile_s
  result['floor_ratio'] = best / result['floor_ms']
  tick()
  is_latent = model.config.latent is not None
  result['stack_ms'] = None if is_latent else _stack_ms(model, repeats)
  tick()
  result['head_ms'] = _head_ms(model, repeats)
  tick()
  result['score_ms'] = _score_ms(model, 1, 1, context, repeats)
  tick()
  result['sampling_ms'] = {
    name: _sampling_ms(model, params, repeats)
    for name, params in samplers.items()
  }
  tick()
  if drafter is not None:
    result['drafter_round_ms'], _, _ = _round_ms(
      model, drafter, context, repeats
    )
    result['num_draft_tokens'] = drafter.num_draft_tokens
  result['verify_ms'] = []
  for num_rows in rows:
    for num_nodes in nodes:
      ms, best = _verify_ms(model, num_rows, num_nodes, context, repeats)
      floor = roof.seconds(num_rows, num_nodes) * 1e3
      cell = dict(rows=num_rows, nodes=num_nodes, ms=ms, floor_ms=floor)
      result['verify_ms'].append(cell | {'floor_ratio': best / floor})
      tick()
  if compare:
    from jspec.bench import hf

    ratio = hf.compare(model, context, repeats)
    result['transformers'] = ratio
    tick()
  result['peak_memory_gb'] = timing.peak_gb()
  return result


def table(result: dict[str, Any]) -> str:
  """Renders the result for a terminal."""
  floor, plain = result['floor_ms'], result['plain_round_ms']
  rest = plain - result['score_ms'] - result['head_ms']
  parts = [f'    layers   {result["score_ms"]:7.2f} ms']
  if result['stack_ms'] is not None:
    parts = [
      f'    stack    {result["stack_ms"]:7.2f} ms',
      f'    attention{result["score_ms"] - result["stack_ms"]:7.2f} ms',
    ]
  ways = [
    f'{name} {ms:.2f} ms ({100 * ms / plain:.0f} %)'
    for name, ms in result['sampling_ms'].items()
  ]
  lines = [
    f'{result["target"]}, one row, {result["context"]} cached tokens',
    f'  floor      {floor:7.2f} ms  ({result["read_bytes"] / 1e6:.0f} MB at'
    f' {result["read_gb_per_s"]:.1f} GB/s, or matmuls at'
    f' {result["gflop_per_s"]:.0f} GFLOP/s)',
    f'  round      {plain:7.2f} ms ({result["floor_ratio"]:.2f} times the floor'
    ' at best), of which',
    *parts,
    f'    head     {result["head_ms"]:7.2f} ms',
    f'    the rest {rest:7.2f} ms  (sampling, commit, bookkeeping)',
    *(['  sampling   ' + ', '.join(ways)] if ways else []),
    f'  compile    {result["compile_s"]:7.2f} s a program; peak memory'
    f' {result["peak_memory_gb"]:.2f} GB',
  ]
  if 'drafter_round_ms' in result:
    lines.append(
      f'  drafting   {result["drafter_round_ms"]:7.2f} ms a round with'
      f' {result["num_draft_tokens"]} drafts'
    )
  if 'transformers' in result:
    other = result['transformers']
    lines.append(
      f'  transformers {other["transformers_ms"]:.2f} ms a token, jspec in'
      f' turns {other["jspec_ms"]:.2f} ms: {other["ratio"]:.2f} times as fast'
    )
  for title, digits, key in (
    ('verify, ms   ', 1, 'ms'),
    ('best / floor ', 2, 'floor_ratio'),
  ):
    cells = {(c['rows'], c['nodes']): c[key] for c in result['verify_ms']}
    rows = sorted({r for r, _ in cells})
    nodes = sorted({n for _, n in cells})
    lines.append(f'\n{title}' + ''.join(f'{n:>5} nodes' for n in nodes))
    for r in rows:
      values = ''.join(f'{cells[r, n]:11.{digits}f}' for n in nodes)
      lines.append(f'{r:>5} rows   {values}')
  return '\n'.join(lines)


def _round_ms(model, drafter, context, repeats):
  """Median and best of a round, and the seconds to compile it."""
  run_steps, compile_s = programs.rounds_program(model, drafter, context)
  taken = np.array(timing.times(run_steps, repeats)) / programs.STEPS * 1e3
  return float(np.median(taken)), float(taken.min()), compile_s


def _score_ms(model, rows, nodes, context, repeats):
  cache = programs.filled_cache(model, rows, context)

  @jax.jit
  def steps(model, cache, tokens):
    def body(_, tokens):
      hidden = _score(model, cache, tokens).hidden
      return tokens + (hidden[..., 0] > 1e9)

    return jax.lax.fori_loop(0, programs.STEPS, body, tokens)

  tokens = jnp.ones((rows, nodes), jnp.int32)
  run_steps = functools.partial(steps, model, cache, tokens)
  return timing.seconds(run_steps, repeats) / programs.STEPS * 1e3


def _verify_ms(model, rows, nodes, context, repeats):
  """Score, head and greedy acceptance; what a round costs but for drafting.

  Returns:
    The median, and the best.
  """
  cache = programs.filled_cache(model, rows, context)
  params = sampling.stack([sampling.SamplingParams()] * rows)
  num_steps = max(1, programs.STEPS // rows)

  @jax.jit
  def steps(model, cache, tokens):
    def body(_, tokens):
      scored = _score(model, cache, tokens)
      draft = tree.Draft(
        tokens=tokens,
        parents=tree.chain_parents(rows, nodes),
        num_nodes=jnp.full((rows,), nodes, jnp.int32),
        confidence=jnp.ones((rows, nodes)),
      )
      accepted = verify.accept(
        model.logits(scored.hidden), draft, params, cache.table.lengths
      )
      return tokens + (accepted.tokens > 10**8)

    return jax.lax.fori_loop(0, num_steps, body, tokens)

  tokens = jnp.ones((rows, nodes), jnp.int32)
  run_steps = functools.partial(steps, model, cache, tokens)
  taken = np.array(timing.times(run_steps, repeats)) / num_steps * 1e3
  return float(np.median(taken)), float(taken.min())


def _score(model, cache, tokens):
  rows, nodes = tokens.shape
  positions = cache.table.lengths[:, None] + jnp.arange(nodes)
  return model.score(
    tokens, positions, tree.chain_words(rows, nodes), cache, ()
  )


def _stack_ms(model, repeats):
  config = model.config

  q_width = config.num_heads * config.head_width

  def one_layer(layer, x):
    heads = layer.before_attention(x, config)
    return layer.after_attention(x, heads[..., :q_width], config)

  @jax.jit
  def steps(all_layers, x):
    def body(_, x):
      y = jax.lax.fori_loop(
        0,
        config.num_layers,
        lambda i, x: stack.apply(all_layers, i, one_layer, x),
        x,
      )
      return x * 1e-3 + y * 1e-9

    return jax.lax.fori_loop(0, programs.STEPS, body, x)

  x = jnp.ones((1, config.width))
  run_steps = functools.partial(steps, model.layers_for(x), x)
  return timing.seconds(run_steps, repeats) / programs.STEPS * 1e3


def _head_ms(model, repeats):
  @jax.jit
  def steps(model, hidden):
    def body(_, hidden):
      token = sampling.argmax(model.logits(hidden))
      return hidden + (token[:, None] > 10**8)

    return jax.lax.fori_loop(0, programs.STEPS, body, hidden)

  hidden = jnp.ones((1, model.width))
  run_steps = functools.partial(steps, model, hidden)
  return timing.seconds(run_steps, repeats) / programs.STEPS * 1e3


def _sampling_ms(model, params, repeats):
  num_steps = 32
  batch = sampling.stack([params])
  logits = jax.random.normal(jax.random.key(0), (1, model.vocab_size)) * 3

  @jax.jit
  def steps(logits):
    def body(i, carry):
      logits, total = carry
      uniform = jnp.full((1,), 0.37) + i * 1e-3
      token = sampling.sample(logits, batch, uniform)
      return logits + total[:, None] * 1e-12, total + token

    return jax.lax.fori_loop(
      0, num_steps, body, (logits, jnp.zeros((1,), jnp.int32))
    )

  return timing.seconds(lambda: steps(logits)[1], repeats) / num_steps * 1e3
