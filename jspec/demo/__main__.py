# SPDX-License-Identifier: MIT
"""`python -m jspec.demo` is `jspec demo`."""

import sys

from jspec.cli import main

if __name__ == '__main__':
  sys.exit(main.main(['demo', *sys.argv[1:]]))
