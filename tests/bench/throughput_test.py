# SPDX-License-Identifier: MIT
"""The throughput benchmark counts what was run, under the right name."""

import pytest

from jspec.bench import rival, throughput, throughput_report
from jspec.decode import sampling
from jspec.depth import cost_table
from jspec.serve import asks, offline
from jspec.serve import engine as engine_lib
from jspec.serve import settings as settings_lib
from jspec.testing import toy
from tests.evals import drafters, unchecked

NAMES = ('plain', 'static,depth=1', 'full', 'guarded', 'dcut')


def table():
  """Costs that no clock decides."""
  found = cost_table.CostTable(cost_table.Key('none', 't', 'd', '0'))
  for rows in (2, 4):
    found.add_draft(rows, 20, 0.001)
    found.add(rows, rows, 20, 0.010)
    found.add(rows, rows * 5, 20, 0.020)
  return found


@pytest.fixture(scope='module')
def engine():
  target = toy.target(max_len=64)
  with unchecked.constructors():
    return engine_lib.Engine(
      target,
      drafters.Known(target, 4, num_right=3),
      settings_lib.Settings(
        max_rows=4,
        max_len=64,
        page_size=8,
        num_rounds=2,
        row_buckets=(2, 4),
        num_budgets=3,
        chunk_sizes=(16,),
        policies=('static,depth=1', 'dcut'),
      ),
      costs=table(),
    )


@pytest.mark.slow
def test_every_policy_gets_its_launches_and_its_own_depths(engine):
  params = sampling.SamplingParams(max_tokens=30)
  requests = [
    (toy.prompts(1, length, seed=length)[0].tolist(), asks.Ask(params=params))
    for length in (3, 9, 14)
  ]
  seen = []
  result = throughput.run(
    engine,
    NAMES,
    requests,
    concurrencies=(2, 4),
    num_launches=4,
    on_progress=lambda done, total: seen.append((done, total)),
  )
  assert seen[-1] == (40, 40)
  assert not engine.has_work and engine.forms.pinned is None
  assert [at['concurrency'] for at in result['concurrencies']] == [2, 4]
  for at in result['concurrencies']:
    lines = at['results']
    assert tuple(lines) == NAMES
    for line in lines.values():
      assert line['num_launches'] >= 4
      assert line['tokens_per_second'] > 0
    assert lines['plain']['rounds_by_depth'][1:] == [0] * 4
    assert lines['plain']['tokens_per_round'] == 1
    one = lines['static,depth=1']['rounds_by_depth']
    assert one[1] > 0 and one[2:] == [0] * 3
    assert lines['full']['rounds_by_depth'][4] > 0
    assert lines['full']['tokens_per_round'] > 2.5
    assert lines['full']['over_full'] == 1
    for name in ('static,depth=1', 'dcut'):
      assert 0 < lines[name]['share_of_oracle'] <= 1.001
    # Three of four are right, and the table says that all are worth it.
    assert lines['dcut']['share_of_oracle'] > 0.9
  text = throughput_report.table(result)
  rows = [line for line in text.splitlines() if line.startswith('| ')]
  assert len(rows) == 1 + 2 * len(NAMES)
  assert '| 4 | dcut |' in text


class Echo:
  """A rival that says what the engine would, but for one token."""

  def __init__(self, answers, wrong):
    self.answers = [list(answer) for answer in answers]
    self.answers[1][wrong] += 1
    self.asked = []

  def begin(self, prompts):
    self.prompts, self.place = prompts, 1
    return [answer[0] for answer in self.answers]

  def decode(self, num_tokens):
    begin, self.place = self.place, self.place + num_tokens
    self.asked.append(num_tokens)
    return [answer[begin : self.place] for answer in self.answers]


@pytest.mark.slow
def test_a_rival_decodes_as_many_tokens_behind_the_same_prompts(engine):
  texts = [toy.prompts(1, n, seed=n)[0].tolist() for n in (3, 40)]
  prompts = [(texts[0] * 7)[-20:], texts[1][-20:]]
  params = sampling.SamplingParams(max_tokens=40)
  answers = offline.generate(engine, prompts, params)
  other = Echo(answers, wrong=5)
  found = rival.compare(engine, other, texts, rows=2, context=20, num_turns=1)
  assert [list(prompt) for prompt in other.prompts] == prompts
  assert other.asked == [
    8,
    8,
  ]  # Four launches of two rounds; one turn warms up.
  assert found['num_tokens'] == 17 and found['num_equal_tokens'] == [17, 5]
  assert len(found['ratios']) == 1 and found['ratio'] == found['ratios'][0] > 0
  assert not engine.has_work and engine.forms.pinned is None
  assert '22 of 34 tokens equal' in rival.line(found, 'echo')
