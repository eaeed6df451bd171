# SPDX-License-Identifier: MIT
"""The same weights through `transformers`: float32, same cores, same run."""

import inspect
import os
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jspec import errors
from jspec.bench import programs
from jspec.nn import stack
from jspec.targets import architecture, quantised


class Rows:
  """Decodes rows of equal length greedily, with their keys and values cached.

  The model is called directly: `generate` adds bookkeeping to every token.

  Attributes:
    num_threads: cores it uses: all that this process may.
    version: of transformers.
  """

  def __init__(self, model: Any):
    self._torch, self._transformers = packages()
    self.num_threads = len(os.sched_getaffinity(0))
    self._torch.set_num_threads(self.num_threads)
    self.version = self._transformers.__version__
    self._model = _same_weights(model, self._torch, self._transformers)
    # Of `forward`; it was renamed on the way to 5.40.
    known = inspect.signature(self._model.forward).parameters
    self._argument = 'cache' if 'cache' in known else 'past_key_values'

  def begin(self, prompts: Sequence[Sequence[int]]) -> list[int]:
    """Reads prompts of equal length; returns the first token of each."""
    self._cache = self._transformers.DynamicCache()
    self._step(self._torch.tensor(prompts))
    return self._token[:, 0].tolist()

  def decode(self, num_tokens: int) -> list[list[int]]:
    """The next tokens of each row."""
    found = []
    for _ in range(num_tokens):
      self._step(self._token)
      found.append(self._token)
    return self._torch.cat(found, dim=1).tolist()

  def _step(self, tokens):
    with self._torch.inference_mode():
      out = self._model(
        tokens,
        use_cache=True,
        logits_to_keep=1,
        **{self._argument: self._cache},
      )
      self._token = out.logits[:, -1:].argmax(-1)


def packages() -> tuple[Any, Any]:
  """Torch and transformers.

  Raises:
    UserError: one is not installed.
  """
  try:
    import torch
    import transformers
  except ImportError as error:
    raise errors.UserError(
      f'--compare needs torch and transformers ({error}); run `pip install'
      ' torch transformers`'
    ) from error
  return torch, transformers


def compare(model: Any, context: int, repeats: int) -> dict[str, float]:
  """Milliseconds a token of both, one row, measured in turns.

  Raises:
    UserError: torch or transformers is not installed.
  """
  other = Rows(model)
  run_steps, _ = programs.rounds_program(model, None, context)
  jax.block_until_ready(run_steps())

  def decode():
    """Decodes `programs.STEPS` tokens behind a context of ones."""
    other.begin([[1] * context])
    began = time.perf_counter()
    other.decode(programs.STEPS)
    return (time.perf_counter() - began) / programs.STEPS * 1e3

  decode()
  ours, theirs = [], []
  for _ in range(repeats):
    theirs.append(decode())
    began = time.perf_counter()
    jax.block_until_ready(run_steps())
    ours.append((time.perf_counter() - began) / programs.STEPS * 1e3)
  ratio = float(np.median(np.array(theirs) / np.array(ours)))
  return dict(
    transformers_ms=float(np.median(theirs)),
    jspec_ms=float(np.median(ours)),
    ratio=ratio,
  )


def _same_weights(model, torch, transformers):
  c = model.config
  odd = list(architecture.deviations(c))
  if quantised.form_of(model) is not None:
    raise errors.UserError(
      'weights of eight bits are not those that transformers would have:'
      ' compare without weights='
    )
  if odd or c.rope.kind != 'default':
    raise errors.UserError(
      'only Llamas without rotary scaling are compared with transformers; this'
      f' target has {", ".join(odd) or c.rope.kind}'
    )
  config = transformers.LlamaConfig(
    vocab_size=c.vocab_size,
    hidden_size=c.width,
    intermediate_size=c.ff_width,
    num_hidden_layers=c.num_layers,
    num_attention_heads=c.num_heads,
    num_key_value_heads=c.num_kv_heads,
    head_dim=c.head_width,
    max_position_embeddings=c.max_len,
    rms_norm_eps=c.norm_eps,
    rope_theta=c.rope.base,
    tie_word_embeddings=False,
  )
  other = transformers.LlamaForCausalLM(config).eval()
  q_end = c.num_heads * c.head_width
  k_end = q_end + c.num_kv_heads * c.head_width
  state = {
    'model.embed_tokens.weight': model.embedding[...],
    'model.norm.weight': model.final_norm[...],
    'lm_head.weight': model.head[...].T,
  }
  for layer in range(c.num_layers):
    prefix = f'model.layers.{layer}.'
    one = stack.layer(model.layers, layer)
    qkv = np.asarray(one.qkv[...]).T
    gate, up = np.split(np.asarray(one.gate_up[...]).T, 2)
    state |= {
      prefix + 'input_layernorm.weight': one.attn_norm[...],
      prefix + 'self_attn.q_proj.weight': qkv[:q_end],
      prefix + 'self_attn.k_proj.weight': qkv[q_end:k_end],
      prefix + 'self_attn.v_proj.weight': qkv[k_end:],
      prefix + 'self_attn.o_proj.weight': one.out[...].T,
      prefix + 'post_attention_layernorm.weight': one.mlp_norm[...],
      prefix + 'mlp.gate_proj.weight': gate,
      prefix + 'mlp.up_proj.weight': up,
      prefix + 'mlp.down_proj.weight': one.down[...].T,
    }
  other.load_state_dict(
    {name: torch.tensor(np.asarray(value)) for name, value in state.items()}
  )
  return other
