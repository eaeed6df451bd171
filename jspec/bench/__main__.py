# SPDX-License-Identifier: MIT
"""`python -m jspec.bench` is `jspec bench`."""

import sys

from jspec.cli import main

if __name__ == '__main__':
  sys.exit(main.main(['bench', *sys.argv[1:]]))
