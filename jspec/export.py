# SPDX-License-Identifier: MIT
"""`python -m jspec.export` is `jspec export`."""

import sys

from jspec.cli import main

if __name__ == '__main__':
  sys.exit(main.main(['export', *sys.argv[1:]]))
