# SPDX-License-Identifier: MIT
"""`python -m jspec.sim` is `jspec sim`."""

import sys

from jspec.cli import main

if __name__ == '__main__':
  sys.exit(main.main(['sim', *sys.argv[1:]]))
