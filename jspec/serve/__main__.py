# SPDX-License-Identifier: MIT
"""`python -m jspec.serve` is `jspec serve`."""

import sys

from jspec.cli import main

if __name__ == '__main__':
  sys.exit(main.main(['serve', *sys.argv[1:]]))
