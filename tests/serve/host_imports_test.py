# SPDX-License-Identifier: MIT
"""The host's structures are plain Python: no JAX, no numpy."""

import sys

from tests import layering_test

HOST = (
  'admission',
  'chunks',
  'config',
  'flights',
  'ledger',
  'pages',
  'plan',
  'prefix_trie',
  'requests',
  'rows',
  'scheduler',
)


def test_host_modules_import_the_standard_library_only():
  inside, outside = layering_test.read()
  allowed = {'jspec.errors', *(f'jspec.serve.{other}' for other in HOST)}
  for name in HOST:
    module = f'jspec.serve.{name}'
    assert inside[module] <= allowed, name
    assert outside[module] <= sys.stdlib_module_names, name
