# SPDX-License-Identifier: MIT
"""`jspec import` and `jspec export`: drafters from and for other projects.

`jspec export TARGET DST --layout hf` writes a target as a Hugging Face folder.
"""

import argparse
import contextlib
import json
from typing import Any

from jspec import errors

# As `drafters.formats.layouts` has them, which is not imported to read flags.
LAYOUTS = (
  *('angelspec', 'deepspec', 'eagle', 'hy3', 'qwen3_mtp', 'sglang'),
  *('specblock', 'vllm', 'zlab'),
)
HF = 'hf'


def add(programs) -> None:
  """Declares both programs."""
  parser = programs.add_parser(
    'import',
    help="turn another project's drafter into ours",
    description='Reads a drafter checkpoint (config.json, safetensors) of'
    ' another project and writes it as a jspec drafter folder.',
    allow_abbrev=False,
  )
  _add_places(parser)
  parser.add_argument(
    '--layout', choices=LAYOUTS, help='of SRC (default: told by its tensors)'
  )
  parser.add_argument(
    '--set',
    action='append',
    default=[],
    metavar='KEY=VALUE',
    help='what its config.json does not say, such as block_size=8',
  )
  parser.set_defaults(run=run_import)

  parser = programs.add_parser(
    'export',
    help="turn a drafter into another project's layout, or a target into hf",
    description='Writes a jspec drafter folder as another project reads it; or'
    ' a target, which is SRC, as a Hugging Face folder (--layout hf).',
    allow_abbrev=False,
  )
  _add_places(parser)
  parser.add_argument('--layout', choices=(*LAYOUTS, HF), required=True)
  parser.add_argument(
    '--dtype',
    choices=('float32', 'bfloat16'),
    help='with --layout hf: of the tensors (default: float32)',
  )
  parser.set_defaults(run=run_export)


def _add_places(parser):
  parser.add_argument('src', metavar='SRC', help='a checkpoint folder')
  parser.add_argument('dst', metavar='DST', help='absent, or an empty folder')
  parser.add_argument(
    '--target',
    metavar='NAME|DIR|FILE.gguf|hf:ORG/NAME',
    help='its target: checks copies of it, or gives them',
  )


def run_import(args: argparse.Namespace) -> None:
  """Reads, converts, writes, and says what it did."""
  extra = given(args.set)
  from jspec.drafters.formats import copies, fields, folder, layouts

  folder.check_free(args.dst)
  config, tensors = folder.read(args.src, layouts.drafting)
  with _at(args.src):
    layout = args.layout or layouts.detect(config, tensors)
  loaded, target = _target(args.target)
  if loaded is not None:
    extra['target_name'] = loaded.name
    extra['target_fingerprint'] = loaded.fingerprint
    extra.setdefault('target_num_hidden_layers', target.num_layers)
  with _at(args.src):
    found, native = layouts.to_native(
      config, tensors, extra, target, layout=layout
    )
  folder.write(args.dst, found, native)
  print(
    f'{args.src}: {layout} layout, {found["model_type"]},'
    f' {len(tensors)} tensors'
  )
  print(', '.join(f'{key} {found[key]}' for key in _told(found)))
  copied = copies.left_out(tensors, native)
  if copied:
    state = "equal to the target's" if target else 'not checked: no --target'
    print(f'left out {", ".join(copied)} ({state})')
  dropped = sorted(fields.DROPPED & config.keys())
  if dropped:
    print(f'left out config keys {", ".join(dropped)}')
  if 'target_fingerprint' not in found:
    print('its target is not known; --target would bind it to one')
  print(f'wrote {args.dst}: {len(native)} tensors')


def run_export(args: argparse.Namespace) -> None:
  """Reads, converts, writes, and says what it did."""
  if args.layout == HF:
    _export_target(args)
    return
  if args.dtype is not None:
    raise errors.UserError(
      f'--dtype is for --layout {HF}: a drafter keeps the dtype it has'
    )
  from jspec.drafters.formats import folder, layouts

  folder.check_free(args.dst)
  config, tensors = folder.read(args.src)
  loaded, target = _target(args.target)
  theirs = config.get('target_fingerprint')
  if None not in (loaded, theirs) and loaded.fingerprint != theirs:
    raise errors.UserError(
      f'{args.src} was made for target {config.get("target_name", "?")} with'
      f' fingerprint {theirs}, {args.target} has {loaded.fingerprint}; give the'
      ' target it was made for'
    )
  with _at(args.src):
    found, foreign = layouts.from_native(config, tensors, args.layout, target)
  folder.write(args.dst, found, foreign)
  print(f'{args.src}: {config["model_type"]}, {len(tensors)} tensors')
  print(', '.join(f'{key} {config[key]}' for key in _told(config)))
  kept = layouts.unsaid(config, found)
  if kept:
    print(f'the {args.layout} layout does not say {", ".join(kept)}')
  print(f'wrote {args.dst}: {args.layout} layout, {len(foreign)} tensors')


def _export_target(args):
  """Writes a target."""
  if args.target is not None:
    raise errors.UserError(
      f'--layout {HF} writes a target, which is SRC: leave --target out'
    )
  from jspec import loading
  from jspec.drafters.formats import folder

  folder.check_free(args.dst)
  files = loading.export_target(args.src, args.dst, args.dtype or 'float32')
  size = sum(file.stat().st_size for file in files)
  print(f'wrote {args.dst}: {len(files)} files of tensors, {size:,} bytes')


def given(pairs: list[str]) -> dict[str, Any]:
  """Reads KEY=VALUE pairs; values are JSON, else text.

  Raises:
    UserError: not such a pair, or a key twice.
  """
  found = {}
  for pair in pairs:
    key, equals, text = pair.partition('=')
    if not equals or not key.isidentifier() or key in found:
      raise errors.UserError(
        f'--set {pair!r}: write each key once, as KEY=VALUE'
      )
    try:
      found[key] = json.loads(text)
    except ValueError:
      found[key] = text
  return found


@contextlib.contextmanager
def _at(place):
  """Says in whose checkpoint an error is."""
  try:
    yield
  except errors.UserError as error:
    raise errors.UserError(f'{place}: {error}') from error


def _told(config):
  keys = ('block_size', 'num_draft_tokens', 'label_shift', 'target_layer_ids')
  return [key for key in keys if key in config]


def _target(spec):
  """The loaded target and what checkpoints copy of it, or nothing twice."""
  if spec is None:
    return None, None
  from jspec import loading
  from jspec.drafters.formats import copies

  loaded = loading.load_target(spec)
  return loaded, copies.of_model(loaded.model)
