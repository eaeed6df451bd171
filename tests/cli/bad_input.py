# SPDX-License-Identifier: MIT
"""What the tests of bad input share: file contents, and how to write lines."""

import json

CONFIG = 'configs/train/dflash.py'


def contents(folder):
  """Every path below a folder, with the bytes of the files."""
  return {
    str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
    for path in folder.rglob('*')
  }


def write(path, *lines):
  texts = [
    line if isinstance(line, str) else json.dumps(line) for line in lines
  ]
  path.write_text('\n'.join(texts) + '\n', encoding='utf-8')
  return path


def words(count):
  return ' '.join(['w5'] * count)


# --- flags ------------------------------------------------------------------
