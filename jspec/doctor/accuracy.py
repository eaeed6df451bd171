# SPDX-License-Identifier: MIT
"""How far a target in fewer bits is from the same files in floats.

The float form answers the prompts. Every form is then given the same texts,
whole, and what it says behind each of their tokens is compared where the answer
stands:

  agreement   share of tokens whose likeliest successor is the same
  kl          sum_v p ln(p / q), in nats, p of the float form; mean and largest
  logit       the largest difference of any logit

The float form has the `dtype` that was asked for, and neither `weights` nor
`cache`. Not here: what the difference does to tasks, which `jspec evals` and
your own prompts tell.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jspec import conversation, loading, opening
from jspec.cache import forms
from jspec.data import sources
from jspec.decode import generate, sampling
from jspec.evals import table_text
from jspec.nn import qarray
from jspec.typing import Array, Bool, Float, Int

# Texts are padded to multiples, so that a form compiles one program.
_LEN_TO = 128


def measure(
  spec: str,
  prompts: Sequence[sources.Prompt],
  params: sampling.SamplingParams,
  num_rows: int,
  on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
  """Compares the form that is asked for, or every form, with floats.

  On the host there are the logits of all tokens of all answers.

  Args:
    spec: as of `loading.load_target`; without `weights` and `cache` each form
      of either is compared.
    prompts: what is answered.
    params: of the answers; their stop ids are those of the target.
    num_rows: answers decoded at the same time.
    on_progress: called with (forms done, forms in all), floats included.

  Returns:
    For JSON, see `text`.

  Raises:
    UserError: as `loading.load_target`, or prompts that do not fit.
  """
  found = opening.open_target(spec)
  name = spec.partition(',')[0]
  asked = [{'weights': found.weights, 'cache': found.cache}]
  if not any(asked[0].values()):
    asked = [{'weights': form, 'cache': None} for form in qarray.FORMS]
    asked += [{'weights': None, 'cache': form} for form in forms.NAMES]
  plain = f'{name},dtype={found.dtype}'
  texts, want = _floats(plain, prompts, params, num_rows)
  result = {
    'reference': plain,
    'num_answers': len(texts),
    'num_tokens': sum(len(logits) for logits in want),
    'forms': [],
  }
  for done, form in enumerate(asked, 1):
    if on_progress is not None:
      on_progress(done, len(asked) + 1)
    options = [f'{key}={value}' for key, value in form.items() if value]
    loaded = loading.load_target(','.join([plain, *options]))
    per_text = [
      _compared(logits, other)
      for logits, other in zip(_logits(loaded.model, texts), want, strict=True)
    ]
    del loaded
    same, kl, logit = (np.concatenate(x) for x in zip(*per_text, strict=True))
    result['forms'].append(
      {
        **form,
        'agreement': float(same.mean()),
        'kl_mean': float(kl.mean()),
        'kl_max': float(kl.max()),
        'logit_max': float(logit.max()),
      }
    )
  return result


def text(result: dict[str, Any]) -> str:
  """The result as a table."""
  rows = [
    [
      ','.join(f'{key}={one[key]}' for key in ('weights', 'cache') if one[key]),
      f'{100 * one["agreement"]:.1f} %',
      f'{one["kl_mean"]:.1e}',
      f'{one["kl_max"]:.1e}',
      f'{one["logit_max"]:.2f}',
    ]
    for one in result['forms']
  ]
  header = ('form', 'same token', 'KL mean', 'KL max', 'logit max')
  return (
    f'against {result["reference"]}, {result["num_tokens"]} tokens of'
    f' {result["num_answers"]} answers\n' + table_text.aligned(header, rows)
  )


def _floats(spec, prompts, params, num_rows):
  """The float form's answers, each (ids, tokens of the answer); its logits."""
  loaded = loading.load_target(spec)
  params = dataclasses.replace(params, stop_ids=loaded.stop_ids)
  decoder = generate.Decoder(
    loaded.model,
    num_rows=min(num_rows, len(prompts)),
    max_len=conversation.needed_len(loaded, prompts, params.max_tokens),
  )
  replies = conversation.answer(
    loaded, decoder, prompts, conversation.seeded(params, len(prompts))
  )
  texts = [
    ([*reply.prompt_tokens, *reply.output.tokens], len(reply.output.tokens))
    for reply in replies
  ]
  del decoder
  return texts, _logits(loaded.model, texts)


def _logits(model, texts):
  """Of each text, the logits that its answer's tokens were chosen by."""
  longest = max(len(ids) for ids, _ in texts)
  width = -(-longest // _LEN_TO) * _LEN_TO
  most = max(num for _, num in texts)
  found = []
  for ids, num in texts:
    tokens = np.zeros((1, width), np.int32)
    tokens[0, : len(ids)] = ids
    first = len(ids) - num - 1
    at = np.minimum(first + np.arange(most), len(ids) - 2)
    with jax.default_matmul_precision('highest'):
      found.append(np.asarray(_logits_at(model, tokens, at))[:num])
  return found


@jax.jit
def _logits_at(
  model: Any, tokens: Int[Array, '1 S'], at: Int[Array, 'T']
) -> Float[Array, 'T V']:
  positions = jnp.arange(tokens.shape[1])[None]
  hidden, _ = model.encode(tokens, positions, jnp.ones_like(tokens), ())
  return model.logits(hidden[0, at])


def _compared(
  got: Float[np.ndarray, 'T V'], want: Float[np.ndarray, 'T V']
) -> tuple[
  Bool[np.ndarray, 'T'], Float[np.ndarray, 'T'], Float[np.ndarray, 'T']
]:
  """Of every token, whether the best is the same; the divergence; the logits.

  Args:
    got: of a form.
    want: of floats.
  """
  same = got.argmax(-1) == want.argmax(-1)
  p, q = (np.asarray(jax.nn.log_softmax(x)) for x in (want, got))
  kl = np.sum(np.exp(p) * (p - q), axis=-1, dtype=np.float64)
  return same, kl, np.abs(got - want).max(-1)
