# SPDX-License-Identifier: MIT
"""`python -m jspec.evals` is `jspec evals`."""

import sys

from jspec.cli import main

if __name__ == '__main__':
  sys.exit(main.main(['evals', *sys.argv[1:]]))
