# SPDX-License-Identifier: MIT
"""`python -m jspec.train` is `jspec train`."""

import sys

from jspec.cli import main

if __name__ == '__main__':
  sys.exit(main.main(['train', *sys.argv[1:]]))
