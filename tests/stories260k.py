# SPDX-License-Identifier: MIT
"""A real model of 1 MB for tests: TinyStories 260K in llama2.c's flat binary.

Format (v0): seven int32 (dim, hidden, layers, heads, kv heads, vocab, length),
then float32 arrays in the order of `_layout`, matrices [out, in]. Rotary pairs
are neighbours, as in llama.cpp, so Q and K rows are reordered for the halves
that jspec rotates.
"""

import struct

import jax
import jax.numpy as jnp
import numpy as np

from jspec.nn import rope
from jspec.targets import gguf_model, quantised, transformer
from tests import shared_data

BOS_ID = 1
START = (
  'Once upon a time, there was a little girl named Lily. She loved to play'
  ' outside in the park. One day, she saw a big, red ball'
)


def config(**changes) -> transformer.TransformerConfig:
  fields = {
    'num_layers': 5,
    'width': 64,
    'ff_width': 172,
    'num_heads': 8,
    'num_kv_heads': 4,
    'head_width': 8,
    'vocab_size': 512,
    'max_len': 512,
    'norm_eps': 1e-5,
    'rope': rope.RopeConfig(base=10000.0, kind='default'),
    'tied': True,
  }
  return transformer.TransformerConfig(**(fields | changes))


def raw() -> dict[str, np.ndarray]:
  """The arrays of the file as they are; skips where there is no file."""
  path = shared_data.path('data/stories260k/stories260K.bin')
  data = path.read_bytes()
  sizes = struct.unpack('7i', data[:28])
  c = config()
  assert sizes == (
    c.width,
    c.ff_width,
    c.num_layers,
    c.num_heads,
    c.num_kv_heads,
    c.vocab_size,
    c.max_len,
  )
  values, at, out = np.frombuffer(data, '<f4', offset=28), 0, {}
  for name, shape in _layout(c).items():
    size = int(np.prod(shape))
    out[name] = values[at : at + size].reshape(shape)
    at += size
  # What is left are the tables of cosines and sines.
  assert values.size - at == c.max_len * c.head_width
  return out


def load(
  weights: str | None = None, cache_form: str | None = None
) -> transformer.Transformer:
  """The model, in a form; skips the test where its file is absent."""
  c, w = config(), raw()
  q = [gguf_model.rotate_half_rows(x, c.head_width) for x in w['q']]
  k = [gguf_model.rotate_half_rows(x, c.head_width) for x in w['k']]
  qkv = np.concatenate([np.stack(q), np.stack(k), w['v']], axis=1)
  gate_up = np.concatenate([w['gate'], w['up']], axis=1)
  arrays = {
    'embedding': w['embedding'],
    'head': w['embedding'].T,
    'final_norm': w['final_norm'],
    'attn_norm': w['attn_norm'],
    'qkv': qkv.swapaxes(1, 2),
    'out': w['out'].swapaxes(1, 2),
    'mlp_norm': w['mlp_norm'],
    'gate_up': gate_up.swapaxes(1, 2),
    'down': w['down'].swapaxes(1, 2),
  }
  arrays = {name: jnp.asarray(value) for name, value in arrays.items()}
  return transformer.Transformer(
    c, quantised.arrays(arrays, weights), cache_form=cache_form
  )


def vocabulary() -> tuple[list[bytes], list[float]]:
  """Pieces and scores; ids 0..2 are unknown, BOS and EOS."""
  data = shared_data.path('data/stories260k/tok512.bin').read_bytes()
  pieces, scores, at = [], [], 4
  while at < len(data):
    score, size = struct.unpack('fi', data[at : at + 8])
    pieces.append(data[at + 8 : at + 8 + size])
    scores.append(score)
    at += 8 + size
  return pieces, scores


def decode(ids) -> str:
  """The text of token ids; BOS and EOS are nothing."""
  pieces, _ = vocabulary()
  out = []
  for i in ids:
    piece = pieces[i]
    if i < 3:
      continue
    if piece.startswith(b'<0x') and piece.endswith(b'>'):
      piece = bytes([int(piece[3:-1], 16)])
    out.append(piece)
  return b''.join(out).decode('utf-8', 'replace').lstrip(' ')


def greedy(
  model: transformer.Transformer, num_tokens: int, prompt=(BOS_ID,)
) -> list[int]:
  """The most probable continuation, by whole forward passes without a cache."""
  total = len(prompt) + num_tokens
  tokens = np.zeros((1, total), np.int32)
  tokens[0, : len(prompt)] = prompt

  @jax.jit
  def best(model, tokens):
    positions = jnp.arange(total, dtype=jnp.int32)[None]
    hidden, _ = model.encode(tokens, positions, jnp.ones_like(tokens), ())
    return model.logits(hidden).argmax(-1)

  for at in range(len(prompt), total):
    tokens[0, at] = int(best(model, jnp.asarray(tokens))[0, at - 1])
  return [int(i) for i in tokens[0, len(prompt) :]]


def _layout(c) -> dict[str, tuple[int, ...]]:
  q_width, kv_width = c.num_heads * c.head_width, c.num_kv_heads * c.head_width
  return {
    'embedding': (c.vocab_size, c.width),
    'attn_norm': (c.num_layers, c.width),
    'q': (c.num_layers, q_width, c.width),
    'k': (c.num_layers, kv_width, c.width),
    'v': (c.num_layers, kv_width, c.width),
    'out': (c.num_layers, c.width, q_width),
    'mlp_norm': (c.num_layers, c.width),
    'gate': (c.num_layers, c.ff_width, c.width),
    'down': (c.num_layers, c.width, c.ff_width),
    'up': (c.num_layers, c.ff_width, c.width),
    'final_norm': (c.width,),
  }
