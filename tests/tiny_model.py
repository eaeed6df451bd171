# SPDX-License-Identifier: MIT
"""A Hugging Face folder with everything in it, small enough to load at once."""

import json
import pathlib

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers

from jspec.checkpoints import safetensors

VOCAB, WIDTH, FF, LAYERS, MAX_LEN = 64, 16, 32, 4, 128
END = 'w2'
TEMPLATE = (
  "{% for m in messages %}{{ 'w60 ' if m['role'] == 'user' else 'w61 ' }}"
  "{{ m['content'] }} w2 {% endfor %}"
  "{% if add_generation_prompt %}{{ 'w61' }}{% endif %}"
)


def fields(**changes) -> dict:
  """The config.json of the model."""
  return {
    'model_type': 'llama',
    'hidden_size': WIDTH,
    'intermediate_size': FF,
    'num_hidden_layers': LAYERS,
    'num_attention_heads': 2,
    'num_key_value_heads': 1,
    'vocab_size': VOCAB,
    'max_position_embeddings': MAX_LEN,
    'rms_norm_eps': 1e-5,
    'hidden_act': 'silu',
    'rope_theta': 1e4,
    'tie_word_embeddings': True,
    'eos_token_id': 2,
    **changes,
  }


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
  """Random weights under their Hugging Face names, [out, in]."""
  shapes = {
    'model.embed_tokens.weight': (VOCAB, WIDTH),
    'model.norm.weight': (WIDTH,),
  }
  for i in range(LAYERS):
    shapes |= {
      f'model.layers.{i}.input_layernorm.weight': (WIDTH,),
      f'model.layers.{i}.self_attn.q_proj.weight': (WIDTH, WIDTH),
      f'model.layers.{i}.self_attn.k_proj.weight': (WIDTH // 2, WIDTH),
      f'model.layers.{i}.self_attn.v_proj.weight': (WIDTH // 2, WIDTH),
      f'model.layers.{i}.self_attn.o_proj.weight': (WIDTH, WIDTH),
      f'model.layers.{i}.post_attention_layernorm.weight': (WIDTH,),
      f'model.layers.{i}.mlp.gate_proj.weight': (FF, WIDTH),
      f'model.layers.{i}.mlp.up_proj.weight': (FF, WIDTH),
      f'model.layers.{i}.mlp.down_proj.weight': (WIDTH, FF),
    }
  rng = np.random.default_rng(seed)
  return {
    name: rng.normal(0, 0.3, shape).astype(np.float32)
    for name, shape in shapes.items()
  }


def write(
  folder: pathlib.Path,
  *,
  config: dict | None = None,
  weights: dict[str, np.ndarray] | None = None,
  num_words: int = VOCAB,
  seed: int = 0,
) -> pathlib.Path:
  """Writes the model; each part may be another than the others expect."""
  safetensors.write(folder, weights or tensors(seed), config or fields())
  words = {f'w{i}': i for i in range(num_words)}
  backend = tokenizers.Tokenizer(models.WordLevel(words, 'w0'))
  backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  backend.save(str(folder / 'tokenizer.json'))
  (folder / 'tokenizer_config.json').write_text(
    json.dumps({'eos_token': END, 'chat_template': TEMPLATE})
  )
  return folder
