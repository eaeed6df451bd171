# SPDX-License-Identifier: MIT
"""A machine of round numbers, and requests that are known token by token."""

import numpy as np

from jspec.sim import acceptance, compare, costs, traces


def machine(
  base_s=1.0, node_s=0.1, rows=(4, 8), block=4, prefill_s=0.0, plain=True
):
  """Verification is `base_s` + `node_s` a node; proposing takes 0.5 s."""
  buckets = tuple(
    costs.Bucket(
      rows=number,
      nodes=tuple(range(number, block * number + 1)),
      verify_s=tuple(
        base_s + node_s * total for total in range(number, block * number + 1)
      ),
      draft_s=0.5,
      plain_s=base_s + node_s * number if plain else None,
    )
    for number in rows
  )
  return costs.Machine(
    name='small', block=block, buckets=buckets, prefill_s=prefill_s
  )


def requests(arrival_s, output_len, prompt_len=0, is_closed=False):
  output_len = np.asarray(output_len)
  return traces.Requests(
    np.asarray(arrival_s, float),
    np.full(len(output_len), prompt_len),
    output_len,
    is_closed,
  )


def tokens(is_easy):
  """Drafts of easy tokens are accepted, and the drafter knows."""
  is_easy = np.asarray(is_easy, bool)
  easiness = np.where(is_easy, 0.999, 0.001)
  luck = np.full(is_easy.shape, 0.5)
  return acceptance.Tokens(easiness, luck, easiness, np.ones(len(is_easy)))


def world(where, served, answers, max_rows=1, ratios=()):
  return compare.World(
    requests=served,
    tokens=answers,
    machine=where,
    max_rows=max_rows,
    ratios=ratios,
  )


def random_world(
  where, domain, max_rows=8, num_requests=40, output_len=64, **options
):
  served = traces.closed(num_requests, 0, output_len)
  return compare.world(where, served, (domain,), max_rows=max_rows, **options)
