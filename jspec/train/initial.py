# SPDX-License-Identifier: MIT
"""Training that goes on from a drafter there is: ours, or an imported one.

An MTP layer that comes with a target (`jspec import TARGET_FOLDER DIR`), a
published drafter for this target, the export of another run.
"""

import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jspec import errors
from jspec.drafters import interchange
from jspec.drafters.formats import layouts
from jspec.train import settings

# What says how to decode; weights do not depend on it.
_DECODING = layouts.DECODING | {'num_draft_tokens'}


def drafter(
  config: settings.TrainConfig, loaded: Any, make: Callable[..., Any]
) -> Any:
  """Builds the drafter of the config with the weights of `drafter.init`.

  The reduced vocabulary is the one it has.

  Args:
    config: of the run; `drafter.init` is a folder.
    loaded: the target.
    make: the builder.

  Raises:
    UserError: it cannot be read, is for another target, or is another drafter
      than the one that the config describes.
  """
  chosen = config.drafter
  place = pathlib.Path(chosen.init).expanduser()
  if (place / 'export' / 'config.json').is_file():  # The workdir of a run.
    place = place / 'export'
  tokenizer = loaded.tokenizer
  special = {*loaded.stop_ids, tokenizer and tokenizer.bos_id} - {None}
  first = interchange.load(
    place,
    loaded.model,
    target_fingerprint=loaded.fingerprint,
    reserved_token_ids=special,
  )
  ids = None
  if first.draft_token_ids is not None:
    ids = jax.device_get(first.draft_token_ids[...])
  size = None if ids is None else len(ids)
  if chosen.draft_vocab_size != size:
    raise errors.UserError(
      f'drafter.draft_vocab_size is {chosen.draft_vocab_size} but'
      f' drafter.init={place} has {size}: give the same'
    )
  made = make(loaded, chosen.options, ids, jax.random.key(config.seed))
  if made.method != first.method:
    raise errors.UserError(
      f'drafter.init={place} is a {first.method} but {chosen.build} builds a'
      f' {made.method}: take the config of {first.method}'
    )
  method = interchange.find_method(first.method, str(place))
  wanted, found = (method.to_json(d.config) for d in (made, first))
  differ = [
    f'{key} is {wanted[key]} but {found[key]} there'
    for key in sorted(wanted.keys() - _DECODING)
    if wanted[key] != found[key]
  ]
  if differ:
    raise errors.UserError(
      f'drafter.init={place} is another drafter than drafter.options say:'
      f' {"; ".join(differ)}'
    )
  begun, leaves = method.leaves(first), method.leaves(made)
  for name, leaf in leaves.items():
    leaf[...] = begun[name][...]
  return made


def take_out_scales(drafter: Any) -> None:
  """Takes the scales of a calibrated drafter out of its weights, in place.

  The weights of a checkpoint hold the input scales of their own training. With
  new scales beside them the drafter computes what it computed before, and
  learns as a fresh one does. A scale multiplies single entries of a weight
  (`Method.saved`), so weights of ones show it.
  """
  method = interchange.find_method(drafter.method, 'drafter.init')
  leaves = method.leaves(drafter)
  values = {name: leaf[...] for name, leaf in leaves.items()}
  for leaf in leaves.values():
    leaf[...] = jnp.ones_like(leaf[...])
  scales = method.saved(drafter)
  for name, leaf in leaves.items():
    leaf[...] = values[name] / scales[name]
