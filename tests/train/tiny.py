# SPDX-License-Identifier: MIT
"""A target and a run that train in seconds; also run as a process to kill.

python -m tests.train.tiny FOLDER KILL_AT [CHANGES]
"""

import dataclasses
import functools
import json
import os
import pathlib
import signal
import sys
import types

import jax
import ml_collections

from jspec.nn import rope
from jspec.targets import transformer
from jspec.train import loop

VOCAB = 64


def loaded(seed=0, **changes):
  """A random target with all that a loaded one has.

  `changes` replace fields of its config.
  """
  config = transformer.TransformerConfig(
    num_layers=4,
    width=16,
    ff_width=32,
    num_heads=2,
    num_kv_heads=1,
    head_width=8,
    vocab_size=VOCAB,
    max_len=64,
    norm_eps=1e-5,
    rope=rope.RopeConfig(base=1e4, kind='default'),
    tied=False,
  )
  config = dataclasses.replace(config, **changes)
  return types.SimpleNamespace(
    name='tiny',
    label='tiny',
    model=transformer.random(config, jax.random.key(seed)),
    tokenizer=None,
    template=None,
    stop_ids=(2,),
    fingerprint=f'tiny{seed}',
    opened=None,
  )


def write_answers(path, count=24):
  """Counting sequences: each answer goes up by the step of its prompt."""
  with open(path, 'w') as file:
    for n in range(count):
      step = 1 + n % 3
      ids = [1, step, *(8 + (n + step * i) % 48 for i in range(10))]
      file.write(
        json.dumps({'id': f'd{n}', 'ids': ids, 'prompt_len': 3}) + '\n'
      )
  return path


def config(folder: pathlib.Path, **changes):
  """A run of 8 steps, evaluated every 2."""
  values = ml_collections.ConfigDict()
  values.target = 'tiny'
  values.num_steps = 8
  values.print_every = 100
  values.drafter = dict(
    build='jspec.train.build:dflash',
    options=dict(
      num_layers=1,
      taps=(0, 2),
      mask_token_id=3,
      block_size=4,
      loss=dict(num_anchors=8),
    ),
  )
  values.data = dict(
    answers=str(folder / 'answers.jsonl'),
    store=str(folder / 'taps'),
    row_len=32,
    max_len=32,
    num_rows=8,
  )
  values.mesh = dict(preset='dp')
  values.optim = dict(warmup_steps=2, learning_rate=3e-3)
  values.eval = dict(held_out=0.15, every=2, max_batches=2)
  for name, value in changes.items():
    node, parts = values, name.split('__')
    for part in parts[:-1]:
      node = node[part]
    node[parts[-1]] = value
  return values


def silent(_):
  """Takes a message and says nothing."""


def train(
  folder,
  name='run',
  on_progress=None,
  on_message=silent,
  must_resume=False,
  evaluate=None,
  **changes,
):
  """Trains in FOLDER/name."""
  if not (folder / 'answers.jsonl').exists():
    write_answers(folder / 'answers.jsonl')
  return loop.run(
    config(folder, **changes),
    folder / name,
    loaded=loaded(),
    on_progress=on_progress,
    on_message=on_message,
    must_resume=must_resume,
    evaluate=evaluate,
  )


def _kill_at(last):
  def on_progress(step, metrics):
    del metrics
    if step == last:
      os.kill(os.getpid(), signal.SIGKILL)

  return on_progress


if __name__ == '__main__':
  train(
    pathlib.Path(sys.argv[1]),
    on_progress=_kill_at(int(sys.argv[2])),
    on_message=functools.partial(print, flush=True),
    **json.loads(sys.argv[3] if len(sys.argv) > 3 else '{}'),
  )
