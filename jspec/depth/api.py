# SPDX-License-Identifier: MIT
"""The depth policies by name, with their options as text.

  policy                decides by                       for
  static                nothing                          anything
  libraspec             suffix products, one alpha       a row's chain
  libraspec_calibrated  the same, measured costs         a row's chain
  dinkelbach            tokens per second of the batch   chains, trees
  dcut                  the same; floor, ratios, stale   chains, trees
  first_drop            the same, ends at first fall     sampled chains
  caddtree              path probability                 DDTree nodes

`dcut,floor=1,mode=stale` is a policy and its options; several numbers of one
option are joined by `/` (`dcut,ratios=0.25/0.5/1`). `my_pkg.rules:Mine,a=1` is
a frozen dataclass of somebody else that satisfies `base.DepthPolicy`.
"""

import dataclasses
import importlib

from jspec import errors
from jspec.depth import (
  base,
  caddtree,
  dcut,
  dinkelbach,
  first_drop,
  libraspec,
  libraspec_calibrated,
  static,
)

POLICIES = {
  'static': static.Static,
  'libraspec': libraspec.LibraSpec,
  'libraspec_calibrated': libraspec_calibrated.LibraSpecCalibrated,
  'dinkelbach': dinkelbach.Dinkelbach,
  'dcut': dcut.DCut,
  'first_drop': first_drop.FirstDrop,
  'caddtree': caddtree.CaDDTree,
}


def make(spec: str) -> base.DepthPolicy:
  """The policy that a text such as `dcut,floor=1` names.

  Raises:
    UserError: an unknown name or option, an option twice, or a value that is
      none; the message lists what there is.
  """
  name, *parts = [part.strip() for part in spec.split(',')]
  policy = _find(name)
  fields = {field.name: field for field in dataclasses.fields(policy)}
  options = {}
  for part in parts:
    option, equals, text = part.partition('=')
    if option not in fields:
      has = ', '.join(fields) if fields else 'none'
      raise errors.UserError(
        f'depth policy {name!r} has no option {option!r}; it has: {has}'
      )
    if option in options:
      raise errors.UserError(
        f'depth policy {spec!r} gives {option!r} twice; give it once'
      )
    if not equals or not text:
      raise errors.UserError(
        f'depth policy {spec!r}: write {option}=VALUE, separated by commas'
      )
    options[option] = _value(text, fields[option].default, name, option)
  return policy(**options)


def _find(name):
  if ':' not in name:
    if name not in POLICIES:
      raise errors.UserError(
        f'no depth policy {name!r}; there are {", ".join(POLICIES)}, or name'
        ' your own as module:attr'
      )
    return POLICIES[name]
  module, _, attr = name.partition(':')
  try:
    found = getattr(importlib.import_module(module), attr)
  except (ImportError, AttributeError, ValueError) as error:
    raise errors.UserError(
      f'depth policy {name!r} cannot be imported ({error}); give the module and'
      ' its attribute as module:attr'
    ) from error
  if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
    raise errors.UserError(
      f'depth policy {name!r} is no dataclass; make it a frozen dataclass with'
      ' a `plan`, see jspec.depth.base'
    )
  return found


def _value(text, default, name, option):
  """Reads an option; its default says what kind of value it takes."""
  try:
    if isinstance(default, str):
      return text
    if isinstance(default, tuple):
      return tuple(float(part) for part in text.split('/'))
    if isinstance(default, float):
      return float(text)
    if default is None and text == 'none':
      return None
    return int(text)
  except ValueError as error:
    raise errors.UserError(
      f'depth policy {name!r}: {option}={text!r} is no number; several'
      ' numbers are joined by /'
    ) from error
