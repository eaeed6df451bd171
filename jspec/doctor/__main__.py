# SPDX-License-Identifier: MIT
"""`python -m jspec.doctor` is `jspec doctor`."""

import sys

from jspec.cli import main

if __name__ == '__main__':
  sys.exit(main.main(['doctor', *sys.argv[1:]]))
