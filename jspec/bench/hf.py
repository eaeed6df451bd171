# SPDX-License-Identifier: MIT
"""The same weights through `transformers`: float32, same cores, same run."""

import time
from typing import Any

import jax
import numpy as np

from jspec import errors
from jspec.bench import programs
from jspec.nn import stack


def compare(model: Any, context: int, repeats: int) -> dict[str, float]:
  """Milliseconds a token of both, measured in turns.

  Raises:
    UserError: torch or transformers is not installed.
  """
  try:
    import torch
    import transformers
  except ImportError as error:
    raise errors.UserError(
      f'--compare needs torch and transformers ({error}); run `pip install'
      ' torch transformers`'
    ) from error
  other = _same_weights(model, torch, transformers)
  run_steps, _ = programs.rounds_program(model, None, context)
  jax.block_until_ready(run_steps())

  def decode():
    """Decodes `programs.STEPS` tokens greedily behind a context of ones."""
    with torch.no_grad():
      out = other(torch.ones((1, context), dtype=torch.long), use_cache=True)
      token = out.logits[:, -1:].argmax(-1)
      began = time.perf_counter()
      for _ in range(programs.STEPS):
        out = other(token, past_key_values=out.past_key_values, use_cache=True)
        token = out.logits[:, -1:].argmax(-1)
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
