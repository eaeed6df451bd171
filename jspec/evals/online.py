# SPDX-License-Identifier: MIT
"""Real decoding while a drafter is trained: fixed prompts, the weights of now.

  plain decoding          once: the target does not change
  a decoder               made once; weights are arguments of its programs
  every evaluation        decode, compare with the plain answers, count

The target is the one that training has loaded; the drafter is the one in the
trainer's hands, in its form for training. So `tokens_per_round` is what
`jspec eval acceptance` says of the export at the same prompts, but nothing here
says how fast it is.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from jspec import conversation, errors, loading
from jspec.data import sources
from jspec.decode import generate, sampling
from jspec.drafters import base
from jspec.evals import acceptance, lossless, repetition, rescore, settings


class Online:
  """Decodes the same prompts with a drafter whose weights change."""

  def __init__(
    self,
    loaded: loading.LoadedTarget,
    prompts: Sequence[sources.Prompt],
    *,
    max_tokens: int,
    num_rows: int = 8,
    on_message: Callable[[str], None] = print,
  ):
    """Reads the prompts; nothing is decoded yet.

    Args:
      loaded: the target.
      prompts: whose turns are answered, greedily.
      max_tokens: of an answer.
      num_rows: answers decoded at the same time, at most.
      on_message: takes what a person should read.

    Raises:
      UserError: no prompts, or one that does not fit the context.
    """
    params = sampling.SamplingParams(
      max_tokens=max_tokens, stop_ids=loaded.stop_ids
    )
    num_rows = min(num_rows, max(len(prompts), 1))
    settings.describe(loaded, prompts, params, num_rows)
    self._loaded, self._prompts = loaded, prompts
    self._requests = conversation.seeded(params, len(prompts))
    self._shape = {
      'num_rows': num_rows,
      'max_len': conversation.needed_len(loaded, prompts, max_tokens),
    }
    self._on_message = on_message
    # Elsewhere rounding alone may change a token.
    probe = loaded.model.embed(jnp.zeros((1,), jnp.int32))
    self._is_float32 = probe.dtype == jnp.float32
    self._replies = self._decoder = self._rescore = None

  def __call__(self, drafter: Any) -> dict[str, Any]:
    """Numbers of a drafter that differs from the last one by its weights.

    Returns:
      `tokens_per_round`, `num_accepted`, `accepted_per_round` and
      `accepted_if_drafted` as `evals.acceptance` has them, the lists by depth;
      `num_answers`, of which `num_repeating` say nothing of a drafter and are
      left out of these; `num_identical` answers that are those of plain
      decoding and, in float32, `num_ties` and `num_failures` among the others
      (`evals.lossless`). A rate over nothing is left out.

    Raises:
      UserError: the drafter can be trained but not decoded with.
    """
    loaded = self._loaded
    if not isinstance(drafter, base.Drafter):
      raise errors.UserError(
        f'eval.prompts are decoded, and {type(drafter).__name__} lacks what'
        " decoding needs (jspec/drafters/base.py): set eval.prompts to ''"
      )
    drafter = _beside(loaded.model, drafter)
    if self._replies is None:
      self._replies = self._plain()
    if self._decoder is None:
      self._decoder = generate.Decoder(loaded.model, drafter, **self._shape)
      self._rescore = rescore.Rescore(
        loaded.model,
        num_nodes=drafter.num_draft_tokens + 1,
        max_len=self._shape['max_len'],
      )
    else:
      self._decoder.use(drafter)
    requests = settings.by_reply(self._requests, self._prompts)
    outputs = self._decoder.generate(
      [reply.prompt_tokens for reply in self._replies], requests
    )
    is_clean = [
      not repetition.repeats(reply.output.tokens) for reply in self._replies
    ]
    clean = [o for o, keep in zip(outputs, is_clean, strict=True) if keep]
    return {
      **_rates(acceptance.summarise_outputs(clean, drafter.num_draft_tokens)),
      'num_answers': len(outputs),
      'num_repeating': len(outputs) - len(clean),
      **self._identity(outputs, requests),
    }

  def _plain(self):
    decoder = generate.Decoder(self._loaded.model, None, **self._shape)
    return conversation.answer(
      self._loaded, decoder, self._prompts, self._requests
    )

  def _identity(self, outputs, requests):
    """How many answers are those of plain decoding, and what the rest are."""
    if not self._is_float32:
      same = [
        output.tokens == reply.output.tokens
        for output, reply in zip(outputs, self._replies, strict=True)
      ]
      return {'num_identical': sum(same)}
    with jax.default_matmul_precision('highest'):
      found = lossless.compare(self._replies, outputs, requests, self._rescore)
    failures = [difference for difference in found if not difference['is_tie']]
    for difference in failures:
      self._on_message(
        f'evaluate: the answer to {difference["id"]} is not that of plain'
        f' decoding from position {difference["position"]} on, and no tie: a'
        ' fault of jspec, or of the drafter'
      )
    return {
      'num_identical': len(outputs) - len(found),
      'num_ties': len(found) - len(failures),
      'num_failures': len(failures),
    }


def _rates(summary):
  """The rates of a summary, down to the deepest draft there was."""
  deepest = max(
    (depth for depth, num in enumerate(summary['drafted_at'], 1) if num),
    default=0,
  )
  lists = {
    name: summary[name][:deepest]
    for name in ('accepted_per_round', 'accepted_if_drafted')
  }
  numbers = {
    name: summary[name] for name in ('tokens_per_round', 'num_accepted')
  }
  return {k: x for k, x in {**numbers, **lists}.items() if x not in (None, [])}


def _beside(model, drafter):
  """The drafter's arrays where the target's are, whole on each device.

  On the same single device nothing is copied. All processes must come here.
  """
  where = jax.tree.leaves(model)[0].sharding
  if isinstance(where, NamedSharding):
    where = NamedSharding(where.mesh, PartitionSpec())

  def place(x):
    if x.is_fully_replicated:
      x = x.addressable_data(0)
    elif not x.is_fully_addressable:
      x = multihost_utils.process_allgather(x, tiled=True)
    return jax.device_put(x, where)

  return jax.tree.map(place, drafter)
