# SPDX-License-Identifier: MIT
"""Machines of published numbers.

`qwen3_8b_h20`: Qwen3-8B, one H20, block of 16 (D-cut, arXiv 2607.14647).
Verification of 25, 50, 75 and 100 % of 16 nodes a row is published; proposing
and plain decoding are not, and are put in their place as follows.
  - proposing: 5 of the target's 36 layers on every slot of the block, so 5/36
    of verifying the whole block;
  - plain decoding, 64 rows: what makes the whole block 0.65 times as fast, the
    published ratio, at the 6.29 tokens a round of the budget study. 4 rows: as
    long as the smallest verification, 8.2 ms. A line between the two.

`qwen3p5_35b_a3b_h20`: Qwen3.5-35B-A3B, the same source, 64 rows only, since
nothing else is published. Proposing counts as free, which flatters deep drafts;
plain decoding is unknown and no speed-up over it is given.

`hy3`: Hy3-295B-A21B on 8 x H20 (AngelSpec, arXiv 2607.25852, table 7) with DFly
and a block of 8. Tokens per second at concurrency c are published, so the time
of a round is c x tokens a round / tokens per second, with the published means
of 3.00 (MTP-3: 4 nodes a row), 3.69 (DFlash-8: 8 nodes) and 4.79 (DFly-8). One
assumption splits it into proposing and verifying: an MTP step, as well as a
DFlash block, takes 5 % of a plain round. DFly takes longer than DFlash by the
difference of their rounds, as both verify 8 nodes a row.

`hy3_production`: the same in production, where the fixed block made 848 tokens
per second at 64 users and 2.50 tokens a round (section 4): 189 ms a round and
not 112. Contexts are longer there, and prompts are read in between. All rounds,
at any rows, are taken to have the same share of such other work.

Prefill is taken at the price of the last nodes of the largest bucket.
"""

from collections.abc import Callable

from jspec import errors
from jspec.sim import costs

_MS = 1e-3

# Rows -> milliseconds of verifying 25, 50, 75 and 100 % of 16 nodes a row.
QWEN3_8B_VERIFY_MS = {
  4: (8.2, 8.7, 9.7, 10.9),
  8: (10.6, 12.8, 16.3, 19.6),
  16: (16.0, 22.7, 29.8, 35.8),
  32: (29.8, 43.1, 56.6, 70.1),
  64: (55.2, 82.2, 107.9, 133.9),
}
QWEN3P5_35B_A3B_VERIFY_MS = {64: (79.9, 85.4, 86.1, 90.6)}
_SHARES = (0.25, 0.5, 0.75, 1.0)
_DFLASH_LAYERS, _QWEN3_8B_LAYERS = 5, 36
_FULL_BLOCK_SPEEDUP = 0.65  # of 64 rows, over plain decoding
_FULL_BLOCK_TOKENS = 201.2 / 32

# Concurrency -> tokens per second: plain, MTP-3, DFlash-8, DFly-8.
HY3_TOKENS_PER_S = {
  4: (288.4, 460.2, 516.9, 571.2),
  8: (421.8, 701.0, 767.4, 851.2),
  16: (638.2, 1045.0, 1270.3, 1418.8),
  32: (933.9, 1736.9, 2008.2, 2243.1),
  64: (1297.7, 2692.2, 2438.2, 2726.2),
}
HY3_TOKENS_PER_ROUND = (1.0, 3.0, 3.69, 4.79)
HY3_PROPOSING = 0.05  # of a plain round: an MTP step, a DFlash block
HY3_PRODUCTION = (64, 848.0, 2.50)  # users, tokens per second and a round


def qwen3_8b_h20(block: int = 16) -> costs.Machine:
  """Qwen3-8B and DFlash on an H20; the block is 16, or 8 cut from it."""
  share = _DFLASH_LAYERS / _QWEN3_8B_LAYERS
  full_ms = QWEN3_8B_VERIFY_MS[64][-1] * (1 + share)
  plain_ms = {
    4: QWEN3_8B_VERIFY_MS[4][0],
    64: _FULL_BLOCK_SPEEDUP * full_ms / _FULL_BLOCK_TOKENS,
  }
  per_row = (plain_ms[64] - plain_ms[4]) / 60
  buckets = []
  for rows, times in QWEN3_8B_VERIFY_MS.items():
    points = [
      (round(ratio * 16 * rows), ms * _MS)
      for ratio, ms in zip(_SHARES, times, strict=True)
      if ratio * 16 <= block
    ]
    nodes, verify_s = zip(*points, strict=True)
    buckets.append(
      costs.Bucket(
        rows=rows,
        nodes=nodes,
        verify_s=verify_s,
        draft_s=share * verify_s[-1],
        plain_s=(plain_ms[4] + per_row * (rows - 4)) * _MS,
      )
    )
  return _machine('qwen3_8b_h20', block, buckets)


def qwen3p5_35b_a3b_h20() -> costs.Machine:
  """Qwen3.5-35B-A3B on an H20: a mixture of experts, nearly flat."""
  buckets = [
    costs.Bucket(
      rows=rows,
      nodes=tuple(round(ratio * 16 * rows) for ratio in _SHARES),
      verify_s=tuple(ms * _MS for ms in times),
      draft_s=0.0,
    )
    for rows, times in QWEN3P5_35B_A3B_VERIFY_MS.items()
  ]
  return _machine('qwen3p5_35b_a3b_h20', 16, buckets)


def hy3(
  proposing: float = HY3_PROPOSING, *, name: str = 'hy3', other: float = 0.0
) -> costs.Machine:
  """Hy3 with DFly-8 on 8 x H20.

  Args:
    proposing: the assumed share of a plain round.
    name: of the machine.
    other: seconds of other work a round, relative to one of the whole block.
  """
  buckets = []
  for rows, rates in HY3_TOKENS_PER_S.items():
    plain, mtp, dflash, dfly = (
      rows * tokens / rate
      for tokens, rate in zip(HY3_TOKENS_PER_ROUND, rates, strict=True)
    )
    step = proposing * plain
    buckets.append(
      costs.Bucket(
        rows=rows,
        nodes=(rows, 4 * rows, 8 * rows),
        verify_s=(plain, mtp - 3 * step, dflash - step),
        draft_s=step + dfly - dflash,
        plain_s=plain,
        other_s=other * dfly,
      )
    )
  return _machine(name, 8, buckets)


def hy3_production(proposing: float = HY3_PROPOSING) -> costs.Machine:
  """Hy3 with the other work of production."""
  users, rate, tokens = HY3_PRODUCTION
  bench_s = users * HY3_TOKENS_PER_ROUND[-1] / HY3_TOKENS_PER_S[users][-1]
  other = users * tokens / rate / bench_s - 1
  return hy3(proposing, name='hy3_production', other=other)


PUBLISHED: dict[str, Callable[[], costs.Machine]] = {
  'qwen3_8b_h20': qwen3_8b_h20,
  'qwen3p5_35b_a3b_h20': qwen3p5_35b_a3b_h20,
  'hy3': hy3,
  'hy3_production': hy3_production,
}


def published(name: str) -> costs.Machine:
  """A machine by name.

  Raises:
    UserError: no such name; the message lists what there is.
  """
  if name not in PUBLISHED:
    raise errors.UserError(
      f'no costs {name!r}; there are {", ".join(PUBLISHED)}, or give the JSON'
      ' file of a measured cost table'
    )
  return PUBLISHED[name]()


def _machine(name, block, buckets):
  last = buckets[-1]
  return costs.Machine(
    name=name,
    block=block,
    buckets=tuple(buckets),
    prefill_s=prefill(last.nodes, last.verify_s),
  )


def prefill(nodes: tuple[int, ...], verify_s: tuple[float, ...]) -> float:
  """Seconds a prompt token takes: those of the last nodes that were added."""
  return max(verify_s[-1] - verify_s[-2], 0.0) / (nodes[-1] - nodes[-2])
