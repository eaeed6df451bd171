# SPDX-License-Identifier: MIT
"""A server over a fake engine as a process of its own, for tests of signals.

`python -m tests.server.process GRACE_S PAUSE_S` prints its log on stderr.
"""

import sys

from jspec.server import driver, limits, logs, run, served, swaps
from tests.server import fake


def main(grace_s: float, pause_s: float) -> None:
  engine = fake.Engine(
    lambda prompt, ask: [97] * ask.params.max_tokens, pause_s=pause_s
  )
  logs.start()
  run.run(
    served.Served(
      driver=driver.Driver(lambda: engine, max_open=32),
      target=fake.target(),
      names=('fake',),
      vocab_size=fake.VOCAB_SIZE,
      context_len=fake.CONTEXT_LEN,
      drafters={'ngram': None},
      limits=limits.Limits(grace_s=grace_s),
      swaps=swaps.Swaps({'ngram': 'somewhere'}, lambda spec: spec),
    ),
    host='127.0.0.1',
    port=0,
  )


if __name__ == '__main__':
  main(float(sys.argv[1]), float(sys.argv[2]))
