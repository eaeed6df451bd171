# SPDX-License-Identifier: MIT
"""Several policies on the same requests and the same luck, in one table.

Every comparison has plain decoding, the fixed depths and the oracle in it,
whether asked for or not: a number of accepted tokens is no speed, and a policy
that a fixed depth beats is no gain. What is not known is n/a.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jspec.sim import acceptance, contender, costs, run, traces

FIXED_DEPTHS = (0, 1, 2, 4, 8)
# Upper ends of the groups that a table shows of the chosen depths.
_GROUPS = (0, 1, 3, 7)


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
  """All but the policy.

  Attributes:
    requests: whose.
    tokens: their answers.
    machine: what rounds take.
    max_rows: concurrency.
    ratios: budgets of the staircase, see `Machine.staircase`.
  """

  requests: traces.Requests
  tokens: acceptance.Tokens
  machine: costs.Machine
  max_rows: int
  ratios: tuple[float, ...] = ()

  def run(self, spec: str) -> run.Result:
    """Serves them under one contender."""
    return run.simulate(
      contender.make(spec),
      self.requests,
      self.tokens,
      self.machine,
      max_rows=self.max_rows,
      ratios=self.ratios,
    )


def world(
  machine: costs.Machine,
  requests: traces.Requests,
  domains: tuple[acceptance.Domain, ...],
  *,
  max_rows: int,
  confidence: acceptance.Confidence = acceptance.Confidence(),  # noqa: B008
  ratios: tuple[float, ...] = (),
  seed: int = 0,
) -> World:
  """Draws the answers of the requests."""
  tokens = acceptance.draw(
    domains,
    len(requests.output_len),
    int(requests.output_len.max()) + machine.block,
    confidence=confidence,
    seed=seed,
  )
  return World(
    requests=requests,
    tokens=tokens,
    machine=machine,
    max_rows=max_rows,
    ratios=ratios,
  )


def fixed(machine: costs.Machine) -> tuple[str, ...]:
  """Contenders of a fixed depth: plain decoding to the whole block."""
  depths = [depth for depth in FIXED_DEPTHS if depth < machine.num_drafts]
  drafting = [f'static,depth={depth}' for depth in depths if depth]
  plain = [contender.PLAIN] if machine.has_plain else []
  return (*plain, *drafting, 'static')


def compare(
  here: World,
  specs: Sequence[str],
  on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
  """Runs the contenders, the fixed depths and the oracle.

  Returns:
    `rows` (concurrency), `lines`: a dict for each contender, asked ones first,
    and `best_fixed`: the name of the best fixed depth. All can be JSON.
  """
  baselines = fixed(here.machine)
  # `static,depth=0` and `plain` are one, however they were asked for.
  names = list(dict.fromkeys([*specs, *baselines, contender.ORACLE]))
  results: dict[str, run.Result] = {}
  for done, spec in enumerate(names):
    result = here.run(spec)
    results.setdefault(result.policy, result)
    if on_progress:
      on_progress(done + 1, len(names))
  best = max(baselines, key=lambda name: results[name].tokens_per_s)
  plain = results.get(contender.PLAIN)
  return {
    'rows': here.max_rows,
    'best_fixed': best,
    'lines': [
      _line(result, plain, results[best], results[contender.ORACLE])
      for result in results.values()
    ],
  }


def _line(result, plain, best, oracle):
  rate = result.tokens_per_s
  return {
    **dataclasses.asdict(result),
    'tokens_per_s': rate,
    'speedup': rate / plain.tokens_per_s if plain else None,
    'share_of_oracle': rate / oracle.tokens_per_s,
    'share_of_best_fixed': rate / best.tokens_per_s,
  }


def markdown(comparisons: Sequence[dict[str, Any]]) -> str:
  """One line a contender and concurrency.

  Depths are shares in per cent of (row, round) by drafts verified.
  """
  header = (
    *('rows', 'policy', 'tokens/s', 'x plain', 'tokens a round'),
    *('ms a token', 'p99', 'first token p99, s', 'nodes', 'depth 0'),
    *('of oracle', 'of best fixed', 'depths, %'),
  )
  lines = [_cells(header), _cells(['---'] * len(header))]
  for comparison in comparisons:
    for line in comparison['lines']:
      is_best = line['policy'] == comparison['best_fixed']
      lines.append(
        _cells(
          (
            comparison['rows'],
            line['policy'] + (' (best fixed)' if is_best else ''),
            _number(line['tokens_per_s'], 1),
            _number(line['speedup'], 2),
            _number(line['tokens_per_round'], 2),
            _number(line['tpot_p50_s'], 2, 1e3),
            _number(line['tpot_p99_s'], 2, 1e3),
            _number(line['ttft_p99_s'], 2),
            _number(line['nodes_per_round'], 0),
            _number(line['depth_0_share'], 1, 100, ' %'),
            _number(line['share_of_oracle'], 1, 100, ' %'),
            _number(line['share_of_best_fixed'], 1, 100, ' %'),
            _depths(line['depths']),
          )
        )
      )
  return '\n'.join(lines)


def _depths(shares):
  parts, first = [], 0
  for last in (*_GROUPS, len(shares) - 1):
    if first > len(shares) - 1:
      break
    last = min(last, len(shares) - 1)
    name = f'{first}' if first == last else f'{first}-{last}'
    parts.append(f'{name}: {100 * sum(shares[first : last + 1]):.0f}')
    first = last + 1
  return ', '.join(parts)


def _number(value, digits, scale=1, unit=''):
  return 'n/a' if value is None else f'{scale * value:.{digits}f}{unit}'


def _cells(cells):
  return f'| {" | ".join(map(str, cells))} |'
