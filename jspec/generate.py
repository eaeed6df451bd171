# SPDX-License-Identifier: MIT
"""`python -m jspec.generate` is `jspec generate`."""

import sys

from jspec.cli import main

if __name__ == '__main__':
  sys.exit(main.main(['generate', *sys.argv[1:]]))
