# SPDX-License-Identifier: MIT
"""Which implementation None stands for, here and elsewhere."""

from jspec.kernels import choose

KNOWN = dict.fromkeys(('reference', 'tpu', 'xla'), print)


def test_what_is_traced_for_elsewhere_chooses_as_it_would_there():
  here = choose.best(KNOWN)
  with choose.compiling_for('tpu', num_devices=1):
    assert choose.best(KNOWN) == ('tpu', 'xla')
    assert choose.best({'xla': print}) == ('xla',)
    with choose.compiling_for('tpu', num_devices=4):
      # XLA alone spreads what is not a shard.
      assert choose.best(KNOWN) == ('xla',)
    assert choose.machine() == ('tpu', 1)
  assert choose.best(KNOWN) == here
