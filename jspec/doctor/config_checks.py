# SPDX-License-Identifier: MIT
"""What config.json alone shows: what it lacks, and ids that cannot be right."""

from collections.abc import Mapping
from typing import Any

from jspec.doctor import report

# Objects in published configs whose keys count as the config's own.
_NESTED = ('dflash_config', 'dflare_config', 'eagle_config', 'rope_parameters')
# Why a key that is absent matters.
WHY = {
  'block_size': 'how many slots were trained; others draft badly',
  'd2t': 'the map fits both as offsets and as absolute ids',
  'gate_temperature': 'how the captured layers are weighed',
  'label_shift': 'which token a slot predicts',
  'mask_token_id': 'what fills the slots behind the anchor; padding in its'
  ' place is often the end of text',
  'mtp_draft_input_postnorm': "whether the target's final norm comes first",
  'num_draft_tokens': 'how far it was trained to draft',
  'rms_norm_eps': 'libraries fill in different values',
  'rope_theta': 'the rotary base; libraries fill in 10000 where it is absent',
  'target_layer_ids': 'the layers whose states it reads; drafts from guessed'
  ' ones are bad without an error',
  'target_num_hidden_layers': 'how deep its target is',
}
_TAPS = ('target_layer_ids', 'eagle_aux_hidden_state_layer_ids')
_SPECIAL = ('pad_token_id', 'eos_token_id', 'bos_token_id')


def flat(raw: Mapping[str, Any]) -> dict[str, Any]:
  """The config with the keys of known objects inside it at the top."""
  found = {}
  for name in _NESTED:
    inner = raw.get(name)
    found |= inner if isinstance(inner, Mapping) else {}
  return found | {key: raw[key] for key in raw.keys() - set(_NESTED)}


def absent(key: str) -> report.Finding:
  """A finding about a key that whoever loads the checkpoint must give."""
  why = WHY.get(key, 'it changes what is computed')
  return report.wrong(
    f'config.json does not say {key} ({why}); give it as the drafter was'
    f' trained, with --set {key}=... when importing it'
  )


def check(said: Mapping[str, Any], is_native: bool) -> list[report.Finding]:
  """Findings about a flat config, native where it could be converted."""
  return [*_mask(said), *_taps(said, is_native), *_belongs(said)]


def unsaid_shift(layout: str, label_shift: int) -> report.Finding:
  """A finding where the layout alone tells which token a slot predicts."""
  token = 'k' if label_shift == 0 else 'k + 1'
  return report.doubt(
    f'config.json does not say label_shift; the {layout} layout means'
    f' {label_shift} (slot k predicts token {token}). If drafts are good for'
    ' one token and then never again, measure with --target and --prompts,'
    ' which tries the other one'
  )


def _mask(said):
  mask = said.get('mask_token_id')
  if mask is None:
    return
  for key in _SPECIAL:
    ids = said.get(key)
    if mask in (ids if isinstance(ids, list) else [ids]):
      yield report.wrong(
        f'mask_token_id is {mask}, which is {key} too: texts use that token, so'
        ' "predict here" is mixed up with it; train with a token no text uses'
      )
  size = said.get('vocab_size')
  if isinstance(size, int) and isinstance(mask, int) and not 0 <= mask < size:
    yield report.wrong(
      f'mask_token_id is {mask}, but vocab_size is {size}: it has no embedding'
    )


def _taps(said, is_native):
  ids = next((said[key] for key in _TAPS if said.get(key) is not None), None)
  if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids):
    return
  if ids != sorted(ids):
    yield report.doubt(
      f'the captured layers {ids} are not in ascending order; if the program'
      ' that trained it captured them in ascending order, the projection reads'
      ' the wrong ones'
    )
  depth = said.get('target_num_hidden_layers')
  # Ours are captured before the norm; MTP drafts from the last state anyway.
  is_sure = is_native or said.get('model_type') == 'mtp'
  if isinstance(depth, int) and depth - 1 in ids and not is_sure:
    yield report.doubt(
      f'captured layer {depth - 1} is the last of {depth}: some programs'
      ' capture it before the final norm and some behind it; here it is before'
    )


def _belongs(said):
  if not said.get('target_fingerprint'):
    yield report.doubt(
      'config.json does not say target_fingerprint: any target of that shape'
      ' would be taken; import it with --target'
    )
  if not said.get('target_template'):
    yield report.doubt(
      'config.json does not say target_template, the hash of the chat template'
      ' it was trained with; another template, or thinking turned on or off,'
      ' costs acceptance'
    )
