# SPDX-License-Identifier: MIT
"""Admission, reservation, preemption and the cases that broke other servers."""

import dataclasses

import numpy as np
import pytest

from jspec import errors
from jspec.serve import config as config_lib
from jspec.serve import requests, scheduler
from tests.serve import fake_device


def make(num_in_flight=1, accepted=None, **changes):
  settings = dict(
    num_pages=64,
    page_size=4,
    max_rows=4,
    max_len=128,
    max_drafts=3,
    num_rounds=2,
    chunk_sizes=(4, 16),
    max_prefill_tokens=32,
  )
  config = config_lib.SchedulerConfig(**(settings | changes))
  rng = np.random.default_rng(0)
  device = fake_device.Device(config, rng, accepted)
  return fake_device.Server(scheduler.Scheduler(config), device, num_in_flight)


def request(name, num_tokens=6, max_tokens=12, alphabet=None, **more):
  alphabet = name if alphabet is None else alphabet
  first = alphabet * fake_device.ALPHABET + 1
  return requests.Request(
    id=name,
    prompt=tuple(range(first, first + num_tokens)),
    max_tokens=max_tokens,
    **more,
  )


def test_first_launch_reads_the_prompt_and_decodes():
  server = make()
  server.submit(request(1, num_tokens=6))
  plan = server.scheduler.plan()
  [start], [chunk], [decode] = plan.admitted, plan.chunks, plan.decodes
  assert start.num_cached == 0 and start.tokens == request(1).prompt
  assert (chunk.start, len(chunk.tokens), chunk.size) == (0, 5, 16)
  assert chunk.next_token == start.tokens[-1] and chunk.is_last
  # 5 rows of the prompt and 2 rounds of 4 tokens: 13 rows, 4 pages.
  assert len(decode.pages) == 4 and decode.max_tokens == 8
  assert decode.max_rows == 18 and plan.num_rounds == 2


def test_launch_in_flight_is_reserved_for():
  server = make()
  server.submit(request(1, num_tokens=6, max_tokens=100))
  for num_rows in (13, 21, 29):
    [decode] = server.scheduler.plan().decodes
    assert len(decode.pages) == -(-num_rows // 4)


def test_reservation_ends_with_the_budget():
  server = make()
  server.submit(request(1, num_tokens=6, max_tokens=3))
  for _ in range(3):
    [decode] = server.scheduler.plan().decodes
    assert len(decode.pages) == 3 and decode.max_tokens == 3


def test_prompt_of_one_token_needs_no_prefill():
  server = make()
  server.submit(request(1, num_tokens=1))
  plan = server.scheduler.plan()
  assert plan.chunks == () and len(plan.decodes) == 1


def test_long_prompt_is_read_while_others_decode():
  server = make(max_prefill_tokens=16)
  server.submit(request(1))
  server.step()
  server.submit(request(2, num_tokens=50))
  for start in (0, 16, 32, 48):
    server.step()
    plan = server.plans[-1]
    assert [(c.row, c.start) for c in plan.chunks] == [(1, start)]
    expected = [0, 1] if start == 48 else [0]
    assert {d.row for d in plan.decodes} <= set(expected)
  server.drain()
  server.check_answers()


def test_waiting_request_that_does_not_fit_is_not_overtaken():
  server = make(num_pages=10)
  server.submit(request(1, num_tokens=20, max_tokens=12))
  server.submit(request(2, num_tokens=20, max_tokens=12))
  server.submit(request(3, num_tokens=1, max_tokens=1))
  plan = server.scheduler.plan()
  assert [a.request_id for a in plan.admitted] == [1]


def test_smaller_priority_number_is_admitted_first_then_arrival():
  server = make(max_rows=3)
  for name, priority in ((1, 1), (2, 0), (3, 1), (4, 0)):
    server.submit(request(name, priority=priority))
  plan = server.scheduler.plan()
  assert [a.request_id for a in plan.admitted] == [2, 4, 1]


def test_last_in_order_is_preempted_and_resumes_from_its_pages():
  server = make(num_pages=12, max_rows=2, num_rounds=1)
  for name in (1, 2):
    server.submit(request(name, num_tokens=8, max_tokens=28))
  server.drain()
  server.check_answers()
  assert server.scheduler.num_preemptions
  preempted = [name for plan in server.plans for name in plan.preempted]
  assert set(preempted) == {2}
  resumed = [
    a for plan in server.plans for a in plan.admitted if a.request_id == 2
  ][1]
  assert len(resumed.tokens) + resumed.max_tokens == 36
  assert resumed.num_cached > 0
  assert server.requests[2].num_cached == 0  # As its client is told.
  server.check_balance()


def test_low_priority_is_preempted_though_it_came_first():
  server = make(num_pages=12, max_rows=2, num_rounds=1)
  server.submit(request(1, num_tokens=8, max_tokens=28, priority=5))
  server.submit(request(2, num_tokens=8, max_tokens=28))
  server.drain()
  server.check_answers()
  preempted = [name for plan in server.plans for name in plan.preempted]
  assert set(preempted) == {1}


def test_row_that_ends_keeps_its_pages_while_in_flight():
  server = make()
  server.submit(request(1))
  server.step()
  server.step()
  pool = server.scheduler.ledger.pool
  before = pool.num_free
  assert server.scheduler.cancel(1)
  assert pool.num_free == before
  server.observe()
  assert pool.num_free == pool.num_pages - pool.num_idle


def test_unknown_request_cannot_be_cancelled_and_id_is_free_afterwards():
  server = make()
  assert not server.scheduler.cancel(1)
  progress = server.submit(request(1))
  with pytest.raises(errors.UserError, match='request 1 is running already'):
    server.scheduler.submit(request(1))
  assert server.scheduler.cancel(1) and not server.scheduler.cancel(1)
  assert progress.state is requests.State.CANCELLED
  server.submit(request(1))
  server.drain()
  server.check_answers()


def test_plan_without_work_is_empty_and_counts():
  server = make()
  for _ in range(3):
    plan = server.scheduler.plan()
    assert plan.is_empty and plan.num_rounds == 0
    assert server.scheduler.observe(plan.launch, []) == []
  with pytest.raises(ValueError, match='is next'):
    server.scheduler.observe(plan.launch, [])


def test_stopped_request_caches_the_whole_answer():
  server = make()
  server.submit(request(1, num_tokens=6, max_tokens=30))
  server.drain()
  text = request(1).prompt + server.answers[1].tokens
  follow_up = requests.Request(id=2, prompt=(*text, 1005), max_tokens=2)
  progress = server.submit(follow_up)
  server.step()
  # All full pages of the rows that were written: the last token has none.
  assert progress.num_cached == (len(text) - 1) // 4 * 4


def failing(results):
  return [dataclasses.replace(one, has_failed=True) for one in results]


def test_failed_row_ends_and_nothing_of_it_is_cached():
  server = make(num_in_flight=2)
  server.submit(request(1, num_tokens=15))
  server.step()
  server.step()
  launch, results = server.device.land()
  [output] = server.scheduler.observe(launch, failing(results))
  assert (output.request_id, output.finish_reason) == (1, 'failed')
  assert server.scheduler.ledger.trie.num_cached_tokens == 0
  assert server.scheduler.num_running == 0
  server.observe()
  server.check_balance()


def test_failure_that_comes_late_is_dropped():
  # The request was preempted or cancelled, and its id may live again.
  server = make(num_in_flight=2)
  server.submit(request(1))
  server.step()
  assert server.scheduler.cancel(1)
  server.submit(request(1))
  server.step()
  launch, results = server.device.land()
  assert server.scheduler.observe(launch, failing(results)) == []
  server.drain()
  server.check_answers()


def test_pages_reserved_for_drafts_come_back():
  # BL-061: 200 short requests, ending by stop, cancel and length.
  server = make(num_pages=64)
  pool = server.scheduler.ledger.pool
  reasons = []
  for name in range(200):
    server.submit(request(name, max_tokens=2 + name % 9 * 4))
    if name % 5 == 0:
      server.step()
      server.scheduler.cancel(name)
    server.drain()
    assert pool.num_free + pool.num_idle == 64
    reasons.append(server.answers[name].finish_reason)
  assert {*reasons} == {None, 'stop', 'length'}
  server.check_balance()


@pytest.mark.parametrize('max_drafts', [0, 1, 3, 5])
def test_result_in_flight_at_preemption_is_dropped(max_drafts):
  # BL-066: the pool is too small for four, so rows leave during speculation.
  server = make(num_pages=18, max_drafts=max_drafts, max_len=64)
  for name in range(4):
    server.submit(request(name, num_tokens=9, max_tokens=32))
  server.drain()
  server.check_answers()
  assert server.scheduler.num_preemptions and server.scheduler.num_dropped
  server.check_balance()


@pytest.mark.parametrize('max_drafts', [0, 8])
def test_same_prompt_again_is_found(max_drafts):
  # BL-068: drafts cost no more than a page and the last token.
  server = make(num_pages=128, max_len=400, max_drafts=max_drafts)
  for name in range(2):
    server.submit(request(name, num_tokens=300, alphabet=5))
    server.drain()
  assert server.requests[0].num_cached == 0
  assert server.requests[1].num_cached >= 300 - 4 - 1
  trie = server.scheduler.ledger.trie
  assert trie.num_queries == 2 and trie.num_queried_tokens == 600
  assert trie.num_hit_tokens == server.requests[1].num_cached
  started = [a.num_cached for plan in server.plans for a in plan.admitted]
  assert started == [0, server.requests[1].num_cached]


def test_other_drafters_pages_are_a_miss():
  server = make()
  for name, namespace in enumerate(['a', 'b', 'a']):
    server.submit(request(name, num_tokens=30, alphabet=5, namespace=namespace))
    server.drain()
  cached = [server.requests[name].num_cached for name in range(3)]
  assert cached == [0, 0, 28]


def test_later_request_is_served_like_the_first():
  # BL-069: in sequence, more than three times what the pool holds.
  server = make(num_pages=16, max_len=64, accepted=lambda row: 2)
  steps = {}
  for name in range(14):
    server.submit(request(name, num_tokens=21, max_tokens=12))
    steps[name] = server.drain()
    server.check_balance()
  whole = [n for n, a in server.answers.items() if a.finish_reason == 'length']
  assert len(whole) > 5 and len({steps[name] for name in whole}) == 1
  server.check_answers()


@pytest.mark.parametrize('num_tokens', range(19, 32))
def test_answer_fills_the_context_and_no_page_beyond(num_tokens):
  # BL-074, BL-075: up to the last position, with drafts deeper than what is
  # left; the prompt at the limit is refused.
  server = make(max_len=32, max_drafts=8)
  longest = (request(name, num_tokens, 10**6) for name in range(1, 100))
  progress = server.submit(
    next(
      wanted
      for wanted in longest
      if fake_device.answer(wanted.prompt, 32 - num_tokens)[1] == 'length'
    )
  )
  server.drain()
  server.check_answers()
  assert progress.num_emitted == 32 - num_tokens
  assert [a.finish_reason for a in server.answers.values()] == ['length']
  decodes = [d for plan in server.plans for d in plan.decodes]
  assert max(len(d.pages) for d in decodes) <= 8
  assert {d.max_rows for d in decodes} == {32}
  with pytest.raises(
    errors.UserError, match='32 tokens, and the context of 32'
  ):
    server.submit(request(100, 32))


def test_rows_keep_their_own_tokens_when_others_end_early():
  # BL-078: each prompt has its own alphabet; each row accepts differently.
  server = make(max_rows=8, accepted=lambda row: (0, 1, 3)[row % 3])
  for name in range(8):
    server.submit(request(name, max_tokens=3 + 5 * (name % 4)))
    server.step()
  server.drain()
  for name, answer in server.answers.items():
    assert {t // fake_device.ALPHABET for t in answer.tokens} == {name}
  server.check_answers()


def test_interleaved_requests_equal_their_solo_runs():
  # BL-082: progress is kept per row, however differently rows accept.
  together = make(accepted=lambda row: row)
  for name in range(4):
    together.submit(request(name, max_tokens=30))
  together.drain()
  for name in range(4):
    alone = make(accepted=lambda row, depth=name: depth)
    alone.submit(request(name, max_tokens=30))
    alone.drain()
    assert alone.answers[name] == together.answers[name]


def test_reservation_does_not_follow_the_depth():
  # BL-091: random depths 0..8 in 8 rows; pages depend on tokens alone.
  rng = np.random.default_rng(1)
  server = make(
    num_pages=120,
    max_rows=8,
    max_drafts=8,
    accepted=lambda row: int(rng.integers(0, 9)),
  )
  for name in range(60):
    server.submit(request(name, max_tokens=40))
  while server.scheduler.num_waiting + server.scheduler.num_running:
    server.step()
    for decode in server.plans[-1].decodes:
      progress = server.requests[decode.request_id]
      left = decode.max_rows - len(progress.request.prompt)
      assert decode.max_tokens <= min(2 * 9, left)
      # Room for the deepest launch, or for all that is left.
      room = 4 * len(decode.pages)
      assert room >= min(len(request(0).prompt) - 1 + 18, decode.max_rows)
  server.drain()
  server.check_answers()
  server.check_balance()


def test_rows_of_clients_that_left_are_free_at_once():
  # BL-100: eight clients leave after a few tokens, five times.
  server = make(max_rows=8, num_pages=96, max_prefill_tokens=128)
  for turn in range(5):
    names = [10 * turn + i for i in range(8)]
    for name in names:
      server.submit(request(name, max_tokens=100))
    server.step()
    server.step()
    assert all(server.answers[name].tokens for name in names)
    assert all(
      server.scheduler.cancel(name)
      for name in names
      if server.answers[name].finish_reason is None
    )
    assert server.scheduler.num_running == 0
    server.step()
    server.step()
    while server.device.flying:
      server.observe()
    server.check_balance()
  server.submit(request(99))
  server.step()
  assert [a.request_id for a in server.plans[-1].admitted] == [99]
  assert len(server.plans[-1].decodes) == 1
  server.drain()
  assert server.answers[99].finish_reason is not None
