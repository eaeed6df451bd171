# SPDX-License-Identifier: MIT
"""Rounds are counted and charged as a pencil would."""

import dataclasses

import numpy as np
import pytest

from jspec import errors
from jspec.sim import acceptance, contender, costs, run, traces
from tests.sim import small

SHARP = acceptance.Domain(mean=0.75, between=10.0, within=0.3)
BLUNT = acceptance.Domain(mean=0.75, between=1e4, within=1e4)


def test_rounds_of_one_row_by_hand():
  # Token:   0 1 2 3 4 5 6 7      0 comes from the prompt.
  is_easy = [1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1]
  # Round 1 drafts 1 2 3: 1 2 accepted, bonus 3. Round 2 drafts 4 5 6: all,
  # bonus 7. The bucket of 4 rows: 0.5 + 1 + 0.1 x 4 nodes.
  here = small.world(
    small.machine(prefill_s=0.01),
    small.requests([2.0], [8], prompt_len=10),
    small.tokens([is_easy]),
  )
  result = here.run('static')
  assert (result.num_rounds, result.num_tokens, result.num_finished) == (
    2,
    8,
    1,
  )
  assert result.seconds == pytest.approx(2.0 + 0.1 + 2 * 1.9)
  assert result.tokens_per_round == 3.5
  assert result.nodes_per_round == 4
  assert result.depths == [0, 0, 0, 1]
  assert result.depth_0_share == 0
  assert result.ttft_p99_s == pytest.approx(0.1)
  assert result.tpot_p50_s == pytest.approx(2 * 1.9 / 7)
  # Depth 1: (1), 2 | (3) no, 3 | 4, 5 | 6, 7: the limits leave 6 its draft.
  result = here.run('static,depth=1')
  assert result.num_rounds == 4
  assert result.depths == [0, 1, 0, 0]
  # Plain: seven rounds of 1.4 s without proposing.
  result = here.run('plain')
  assert (result.num_rounds, result.tokens_per_round) == (7, 1)
  assert result.seconds == pytest.approx(2.1 + 7 * 1.4)
  assert result.depth_0_share == 1 and result.depths == [1, 0, 0, 0]


def one_row(tokens, output_len, depth):
  """Rounds of a row that verifies at most `depth` drafts."""
  done, number = 1, 0
  while done < output_len:
    number += 1
    for _ in range(min(depth, output_len - done - 1)):
      if tokens.luck[0, done] >= tokens.easiness[0, done]:
        break
      done += 1
    done += 1
  return number


@pytest.mark.parametrize('depth', [0, 1, 2, 3])
def test_fixed_depths_equal_a_plain_loop(depth):
  for seed in range(5):
    answer = acceptance.draw((SHARP,), 1, 60, seed=seed)
    here = small.world(small.machine(), small.requests([0], [50]), answer)
    result = here.run(f'static,depth={depth}')
    assert result.num_rounds == one_row(answer, 50, depth)
    assert result.num_tokens == 50


def test_everyone_is_served_and_the_batch_drains():
  lengths = np.arange(1, 41)
  answer = acceptance.draw((SHARP,), 40, 60)
  here = small.world(
    small.machine(), small.requests(np.zeros(40), lengths), answer, max_rows=8
  )
  for spec in ('plain', 'static', 'dcut', 'first_drop', 'oracle', 'dcut+guard'):
    result = here.run(spec)
    assert result.num_finished == 40
    assert result.num_tokens == lengths.sum()
    assert sum(result.depths) == pytest.approx(1)


def test_closed_loop_ends_before_it_drains():
  lengths = np.full(9, 30)
  lengths[8] = 500
  answer = acceptance.draw((SHARP,), 9, 600)
  served = small.requests(np.zeros(9), lengths, is_closed=True)
  closed = small.world(small.machine(), served, answer, max_rows=4).run('plain')
  assert closed.nodes_per_round == 4  # Never fewer rows.
  assert closed.num_finished < 9
  opened = served._replace(is_closed=False)
  drained = small.world(small.machine(), opened, answer, max_rows=4).run(
    'plain'
  )
  assert drained.nodes_per_round < 2 and drained.num_finished == 9


def test_clock_waits_for_arrivals_and_prompts():
  served = small.requests([0, 100], [1, 1], prompt_len=50)
  here = small.world(
    small.machine(prefill_s=0.1), served, small.tokens(np.ones((2, 9)))
  )
  result = here.run('static')
  assert result.seconds == pytest.approx(105)
  assert (result.num_rounds, result.num_tokens) == (0, 2)
  assert result.tokens_per_round is None and result.tpot_p50_s is None


def test_queue_makes_the_first_token_late():
  served = small.requests(np.zeros(3), [11, 11, 11])
  answer = small.tokens(np.zeros((3, 20)))
  one, three = (
    small.world(small.machine(), served, answer, max_rows=rows).run('plain')
    for rows in (1, 3)
  )
  assert one.ttft_p99_s == pytest.approx(2 * 10 * 1.4, rel=0.03)
  assert three.ttft_p99_s == 0


def test_free_nodes_are_all_verified_and_dear_ones_are_not():
  free = small.random_world(small.machine(node_s=0.0), SHARP)
  full, cut = free.run('static'), free.run('dcut')
  # Drafts that nobody believes in change no float, and may stay away.
  assert cut.seconds == full.seconds and cut.num_tokens == full.num_tokens
  assert cut.nodes_per_round > 0.98 * full.nodes_per_round
  dear = small.random_world(small.machine(node_s=5.0), SHARP)
  full, cut = dear.run('static'), dear.run('dcut')
  assert cut.nodes_per_round < 0.7 * full.nodes_per_round
  assert cut.tokens_per_s > 1.1 * full.tokens_per_s
  assert cut.tokens_per_round < full.tokens_per_round


@pytest.mark.parametrize('other_s', [0.0, 20.0])
def test_oracle_is_above_all(other_s):
  for node_s in (0.02, 0.3, 5.0):
    where = slowed(small.machine(node_s=node_s), other_s)
    here = small.random_world(where, SHARP)
    best = here.run('oracle').tokens_per_s
    for spec in ('plain', 'static', 'static,depth=1', 'dcut', 'first_drop'):
      # It looks one round ahead, so it may lose a little over many.
      assert here.run(spec).tokens_per_s <= 1.01 * best


def test_oracle_knows_what_else_a_round_takes():
  bucket = costs.Bucket(
    rows=8,
    nodes=(8, 16, 32),
    verify_s=(1.0, 5.0, 20.0),
    draft_s=0.5,
    plain_s=1.0,
    other_s=100.0,
  )
  where = costs.Machine(name='dear', block=4, buckets=(bucket,), prefill_s=0.0)
  here = small.random_world(where, SHARP)
  # A policy does not, and believes that plain rounds are the best.
  assert here.run('dcut').tokens_per_s < here.run('static').tokens_per_s
  assert here.run('oracle').tokens_per_s > here.run('static').tokens_per_s


@pytest.mark.slow
def test_confidence_helps_where_it_tells_something():
  def gain(domain, **options):
    where = small.machine(base_s=1.0, node_s=0.2, block=8)
    here = small.random_world(where, domain, **options)
    depths = [here.run(f'static,depth={d}').tokens_per_s for d in range(8)]
    return here.run('dcut').tokens_per_s / max(depths)

  assert gain(SHARP) > 1.1
  assert 0.95 < gain(BLUNT) < 1.05
  wrong = acceptance.Confidence(bias=4.0, noise=2.0)
  assert gain(SHARP, confidence=wrong) < gain(SHARP) - 0.1


def test_fixed_depths_do_not_feel_confidence():
  wrong = acceptance.Confidence(slope=0.5, bias=2.0, noise=1.0)
  where = small.machine()
  a = small.random_world(where, SHARP).run('static,depth=2')
  b = small.random_world(where, SHARP, confidence=wrong).run('static,depth=2')
  assert a == b


def test_luck_is_common_to_all_policies():
  # Decoding the same tokens, a deeper draft never takes more rounds.
  answer = acceptance.draw((SHARP,), 12, 60)
  here = small.world(
    small.machine(), small.requests(np.zeros(12), np.full(12, 50)), answer
  )
  number = [here.run(f'static,depth={d}').num_rounds for d in range(4)]
  assert sorted(number, reverse=True) == number
  assert here.run('static') == here.run('static')


def test_guard_falls_back_to_plain_decoding():
  # Proposing for nothing: plain rounds are the best.
  hopeless = acceptance.Domain(mean=0.03, between=1e3, within=1e3)
  here = small.random_world(
    small.machine(), hopeless, num_requests=120, output_len=40
  )
  plain, guarded, bare = (
    here.run(spec).tokens_per_s for spec in ('plain', 'static+guard', 'static')
  )
  assert guarded > 0.95 * plain > 1.05 * bare


def slowed(machine, other_s):
  buckets = tuple(
    dataclasses.replace(bucket, other_s=other_s) for bucket in machine.buckets
  )
  return dataclasses.replace(machine, buckets=buckets)


def test_other_seconds_are_in_every_round():
  where = small.machine(rows=(4,))
  slow = slowed(where, 3.0)
  for spec in ('plain', 'static', 'oracle', 'dcut'):
    fast_run, slow_run = (
      small.world(
        each, small.requests([0], [20]), small.tokens(np.ones((1, 30)))
      ).run(spec)
      for each in (where, slow)
    )
    assert fast_run.num_rounds == slow_run.num_rounds
    extra = slow_run.seconds - fast_run.seconds
    assert extra == pytest.approx(3 * fast_run.num_rounds)


def test_decay_makes_deep_drafts_fail():
  fading = acceptance.Domain(mean=0.9, between=1e4, within=1e4, decay=0.7)
  steady = acceptance.Domain(mean=0.9, between=1e4, within=1e4)
  fades, stays = (
    small.random_world(small.machine(), each).run('static').tokens_per_round
    for each in (fading, steady)
  )
  assert fades == pytest.approx(fading.tokens_per_round(3), rel=0.05)
  assert stays == pytest.approx(steady.tokens_per_round(3), rel=0.05)
  assert fades < stays - 0.5


def test_what_was_not_measured_is_not_simulated():
  served, answer = small.requests([0], [9]), small.tokens(np.ones((1, 20)))
  unknown = small.machine(plain=False)
  for spec in ('plain', 'static,depth=0'):
    with pytest.raises(errors.UserError, match='no time of plain decoding'):
      small.world(unknown, served, answer).run(spec)
  assert (
    small.world(unknown, served, answer).run('dcut+guard').num_finished == 1
  )
  with pytest.raises(errors.UserError, match='at most 8'):
    small.world(small.machine(), served, answer, max_rows=9).run('dcut')


def test_run_that_takes_no_time_has_no_rate():
  served, answer = small.requests([0], [1]), small.tokens(np.ones((1, 9)))
  with pytest.raises(errors.UserError, match='no time passed'):
    small.world(small.machine(), served, answer).run('static')


@pytest.mark.parametrize('spec', ['oracle+guard', 'plain+guard'])
def test_guard_needs_a_policy(spec):
  with pytest.raises(errors.UserError, match='guard'):
    contender.make(spec)


def test_a_contender_may_be_plain_or_guarded():
  assert contender.make('static,depth=0').is_plain
  assert contender.make('dcut,floor=1+guard').is_guarded


def test_programs_are_compiled_once_for_all_buckets():
  policy = contender.make('dcut,floor=3').policy
  for rows in (1, 3, 6, 8):
    served = traces.closed(10, 0, 8)
    answer = acceptance.draw((SHARP,), 10, 40)
    small.world(small.machine(), served, answer, max_rows=rows).run(
      'dcut,floor=3'
    )
  assert contender.planner(policy)._cache_size() == 1


def test_rows_have_a_limit():
  with pytest.raises(errors.UserError, match='1024'):
    run._padded(1025)
