# SPDX-License-Identifier: MIT
"""From the tensors of a file to the arrays of a stack: the shared rename table.

Files store a matrix a projection, [out, in]; the stack has them fused, stacked
over the layers and [in, out]:

  q_proj, k_proj, v_proj of layer i  ->  qkv[i, :, ...], side by side
  gate_proj, up_proj of layer i      ->  gate_up[i, :, ...]

Formats differ in names and in the order of the Q and K rows, families in which
arrays there are: those come from the config.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from jspec import errors
from jspec.checkpoints import names
from jspec.targets import architecture

Convert = Callable[[np.ndarray], np.ndarray]
EXPERT_PROJECTIONS = ('gate_proj.', 'up_proj.', 'down_proj.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Names:
  """What one file format calls the tensors; `layer` holds one `{}`.

  Projections end in `weight` or, where the family has one, in `bias`.
  `convert_norm` turns the gain of a norm on disk into a factor.
  """

  embedding: str = 'model.embed_tokens.weight'
  head: str = 'lm_head.weight'
  final_norm: str = 'model.norm.weight'
  layer: str = 'model.layers.{}.'
  attn_norm: str = 'input_layernorm.weight'
  q: str = 'self_attn.q_proj.'
  k: str = 'self_attn.k_proj.'
  v: str = 'self_attn.v_proj.'
  q_norm: str = 'self_attn.q_norm.weight'
  k_norm: str = 'self_attn.k_norm.weight'
  out: str = 'self_attn.o_proj.'
  sinks: str = 'self_attn.sinks'
  mlp_norm: str = 'post_attention_layernorm.weight'
  post_attn_norm: str = ''
  post_mlp_norm: str = ''
  gate: str = 'mlp.gate_proj.'
  up: str = 'mlp.up_proj.'
  down: str = 'mlp.down_proj.'
  router: str = 'mlp.gate.weight'
  expert_bias: str = 'mlp.gate.e_score_correction_bias'
  expert: str = 'mlp.experts.{}.'
  shared_expert: str = 'mlp.shared_experts.'
  convert_norm: Convert = names.identity


def table(
  config: architecture.TransformerConfig,
  of: Names,
  *,
  convert_q: Convert = names.transpose,
  convert_k: Convert = names.transpose,
  shape_q: tuple[int, ...] | None = None,
  shape_k: tuple[int, ...] | None = None,
  attention: Callable[..., list[names.Rule]] | None = None,
  experts: Callable[..., list[names.Rule]] | None = None,
) -> list[names.Rule]:
  """Returns the whole table.

  Args:
    config: of the stack.
    of: the format's names.
    convert_q: from Q on disk to [in, out].
    convert_k: the same of K.
    shape_q: of Q on disk, where `convert_q` is not `names.transpose`.
    shape_k: the same of K.
    attention: rules of the first half of a layer, from config, names and layer;
      None is `plain_attention`.
    experts: rules of the second half of a layer with experts, from config,
      names and layer; None is `experts_apart`.
  """
  experts = experts or experts_apart
  attention = attention or functools.partial(
    plain_attention, q=(convert_q, shape_q), k=(convert_k, shape_k)
  )
  out = top(config, of)
  for i in range(config.num_layers):
    out += attention(config, of, i)
    has_experts = architecture.has_experts(config, i)
    out += (experts if has_experts else mlp)(config, of, i)
  return out


def top(config: architecture.TransformerConfig, of: Names) -> list[names.Rule]:
  """Rules of what lies outside the layers.

  A tied model has no rule for its head: see `load`.
  """
  out = [
    names.Rule(of.embedding, 'embedding'),
    names.Rule(of.final_norm, 'final_norm', (), of.convert_norm),
  ]
  if not config.tied:
    out.append(names.Rule(of.head, 'head', (), names.transpose))
  return out


def plain_attention(
  config: architecture.TransformerConfig,
  of: Names,
  i: int,
  q: tuple[Convert, tuple[int, ...] | None] = (names.transpose, None),
  k: tuple[Convert, tuple[int, ...] | None] = (names.transpose, None),
) -> list[names.Rule]:
  """Rules of the first half of layer `i`; see `table`."""
  layer = of.layer.format(i)
  q_end, kv_width, _ = architecture.qkv_widths(config)
  k_end = q_end + kv_width
  parts = (slice(0, q_end), slice(q_end, k_end), slice(k_end, None))
  stems, ways = (of.q, of.k, of.v), (q, k, (names.transpose, None))
  norms = {of.attn_norm: 'attn_norm'}
  if config.post_norms:
    norms[of.post_attn_norm] = 'post_attn_norm'
  if config.qk_norm:
    norms |= {of.q_norm: 'q_norm', of.k_norm: 'k_norm'}
  out = [
    names.Rule(layer + name, leaf, (i,), of.convert_norm)
    for name, leaf in norms.items()
  ]
  for stem, part, way in zip(stems, parts, ways, strict=True):
    box = (i, names.ALL, part)
    out.append(names.Rule(layer + stem + 'weight', 'qkv', box, *way))
    if config.qkv_bias:
      out.append(names.Rule(layer + stem + 'bias', 'qkv_bias', (i, part)))
  out.append(
    names.Rule(layer + of.out + 'weight', 'out', (i,), names.transpose)
  )
  if config.out_bias:
    out.append(names.Rule(layer + of.out + 'bias', 'out_bias', (i,)))
  if config.sinks:
    out.append(names.Rule(layer + of.sinks, 'sinks', (i,)))
  return out


def mlp(
  config: architecture.TransformerConfig, of: Names, i: int
) -> list[names.Rule]:
  """Rules of the second half of layer `i`, a gated MLP."""
  layer, row = of.layer.format(i), architecture.row(config, i)
  return [
    *second_norms(config, of, i),
    *gated(
      [layer + name for name in (of.gate, of.up, of.down)],
      ('gate_up', 'down'),
      (row,),
      config.ff_width,
    ),
  ]


def experts_apart(
  config: architecture.TransformerConfig, of: Names, i: int
) -> list[names.Rule]:
  """Rules of the second half of layer `i`, experts one by one."""
  layer, row = of.layer.format(i), architecture.row(config, i)
  c = config.experts
  out = [
    *second_norms(config, of, i),
    names.Rule(layer + of.router, 'router', (row,), names.transpose),
  ]
  if c.has_bias:
    out.append(names.Rule(layer + of.expert_bias, 'expert_bias', (row,)))
  leaves = ('experts_gate_up', 'experts_down')
  for expert in range(c.num_experts):
    stem = layer + of.expert.format(expert)
    stems = [stem + name for name in EXPERT_PROJECTIONS]
    out += gated(stems, leaves, (row, expert), c.ff_width)
  if c.shared_ff_width:
    stems = [layer + of.shared_expert + name for name in EXPERT_PROJECTIONS]
    leaves = ('shared_gate_up', 'shared_down')
    out += gated(stems, leaves, (row,), c.shared_ff_width)
  return out


def gated(
  stems: list[str],
  leaves: tuple[str, str],
  box: tuple[int, ...],
  ff_width: int,
) -> list[names.Rule]:
  """Rules of one gated MLP.

  Args:
    stems: of gate, up and down.
    leaves: of gate and up together, and of down.
    box: where in the leaves.
    ff_width: F.
  """
  gate, up, down = (stem + 'weight' for stem in stems)
  parts = (slice(0, ff_width), slice(ff_width, None))
  return [
    *(
      names.Rule(name, leaves[0], (*box, names.ALL, part), names.transpose)
      for name, part in zip((gate, up), parts, strict=True)
    ),
    names.Rule(down, leaves[1], box, names.transpose),
  ]


def second_norms(
  config: architecture.TransformerConfig, of: Names, i: int
) -> list[names.Rule]:
  """Rules of the norms around the second half of layer `i`."""
  layer = of.layer.format(i)
  norms = {of.mlp_norm: 'mlp_norm'}
  if config.post_norms:
    norms[of.post_mlp_norm] = 'post_mlp_norm'
  return [
    names.Rule(layer + name, leaf, (i,), of.convert_norm)
    for name, leaf in norms.items()
  ]


def ignored(
  config: architecture.TransformerConfig, source: names.Source, of: Names
) -> list[str]:
  """Returns tensors that hold nothing to load.

  Old exports store the inverse frequencies of every layer, which the config
  determines; tied ones may store the head again, which must then be the
  embedding.
  """
  present = set(source.names())
  stem = of.layer + 'self_attn.rotary_emb.inv_freq'
  wanted = [stem.format(layer) for layer in range(config.num_layers)]
  found = [name for name in wanted if name in present]
  if config.tied and of.head in present:
    head, embedding = source.read(of.head), source.read(of.embedding)
    if not np.array_equal(head, embedding):
      raise errors.UserError(
        f'{source.where}: tie_word_embeddings is true but {of.head} is not'
        f' {of.embedding}; correct the config or drop the tensor'
      )
    found.append(of.head)
  return found


def load(
  config: architecture.TransformerConfig,
  table: list[names.Rule],
  source: names.Source,
  *,
  ignored: list[str],
  on_tensor: Callable[[int, int], None] | None = None,
) -> dict[str, np.ndarray]:
  """Reads the arrays of `transformer.Transformer`, float32."""
  shapes = architecture.array_shapes(config)
  if config.tied:
    del shapes['head']
  arrays = names.fill(
    table, source, shapes, ignored=ignored, on_tensor=on_tensor
  )
  if config.tied:
    # Materialised [in, out]: on a CPU the transposed matmul is slower.
    arrays['head'] = np.ascontiguousarray(arrays['embedding'].T)
  if config.embedding_scale != 1:
    arrays['embedding'] *= config.embedding_scale
  return arrays
