# SPDX-License-Identifier: MIT
"""The table of families: `model_type` to the module that knows it.

A family is a module with

  config(fields, where)    the architecture of a config.json; every field is
                           used, knowingly ignored, or refused by name
  prepare(source)          the tensors under the names of the table
  rules(config)            the rename table of its tensors
  ignored(config, source)  tensors that hold nothing to load
  written(fields)          config.json of the same target when it is written
  PRESETS                  config.json of published models, by jspec's names

and says in its docstring how it deviates from Llama. Another family is another
module and another line here.
"""

import types
from collections.abc import Mapping
from typing import Any

from jspec import errors
from jspec.targets import (
  architecture,
  deepseek_v3,
  gemma3,
  gpt_oss,
  hy3,
  llama,
  mistral,
  qwen2,
  qwen3,
  qwen3_moe,
)

FAMILIES = {
  'deepseek_v3': deepseek_v3,
  'gemma3': gemma3,
  'gemma3_text': gemma3,
  'gpt_oss': gpt_oss,
  'hy_v3': hy3,
  'llama': llama,
  'mistral': mistral,
  'qwen2': qwen2,
  'qwen3': qwen3,
  'qwen3_moe': qwen3_moe,
}


def find(fields: Mapping[str, Any], where: str) -> types.ModuleType:
  """Returns the family of a `config.json`.

  Raises:
    errors.UserError: there is none of that `model_type`.
  """
  model_type = fields.get('model_type')
  if model_type not in FAMILIES:
    raise errors.UserError(
      f'{where}: model_type {model_type!r} is not supported; use a model of'
      f' type {", ".join(sorted(FAMILIES))}'
    )
  return FAMILIES[model_type]


def presets() -> dict[str, architecture.TransformerConfig]:
  """The architectures of published models, by name."""
  modules = dict.fromkeys(FAMILIES.values())
  return {
    name: module.config(fields, name)
    for module in modules
    for name, fields in module.PRESETS.items()
  }
