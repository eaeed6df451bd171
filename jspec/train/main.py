# SPDX-License-Identifier: MIT
"""`python -m jspec.train.main --config FILE.py:ARG --workdir DIR`."""

import argparse
import sys
from collections.abc import Sequence

from jspec import config as config_lib
from jspec import errors, loading
from jspec.train import loop, prepare, settings


def main(argv: Sequence[str] | None = None) -> None:
  """Reads the command line, loads the target and trains."""
  parser = argparse.ArgumentParser(
    prog='python -m jspec.train.main',
    description='Train a drafter. Change any config key by --config.KEY=VALUE.',
    allow_abbrev=False,
  )
  parser.add_argument('--config', required=True, metavar='FILE.py[:ARG]')
  parser.add_argument('--workdir', metavar='DIR')
  parser.add_argument(
    '--capture_only', action='store_true', help='fill data.store, then stop'
  )
  known, rest = parser.parse_known_args(argv)
  overrides = [word.removeprefix('--config.') for word in rest]
  for word in rest:
    if not word.startswith('--config.'):
      raise errors.UserError(f'unknown argument {word}: see --help')
  values = config_lib.load_file(known.config)
  config_lib.apply_overrides(values, overrides)
  config = config_lib.build(settings.TrainConfig, values)
  if not known.capture_only and known.workdir is None:
    raise errors.UserError('--workdir is missing: name a folder for the run')
  loaded = loading.load_target(config.target)
  if known.capture_only:
    found = prepare.documents(config, loaded)
    train, _ = prepare.split(found, config.eval.held_out)
    drafter = prepare.drafter(config, loaded, [found[n] for n in train])
    prepare.store(config, loaded, found, drafter.taps)
    return
  loop.run(config, known.workdir, loaded=loaded)


if __name__ == '__main__':
  try:
    main()
  except errors.UserError as error:
    print(f'error: {error}', file=sys.stderr)
    sys.exit(2)
