# SPDX-License-Identifier: MIT
"""`python -m jspec.capture` is `jspec capture`."""

import sys

from jspec.cli import main

if __name__ == '__main__':
  sys.exit(main.main(['capture', *sys.argv[1:]]))
