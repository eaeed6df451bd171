# SPDX-License-Identifier: MIT
"""What the compile harness calls a fault; no compiler is needed to say so."""

import dataclasses

import pytest

from tests.tpu_compile import report
from tests.tpu_compile.program import Program

PROGRAM = Program(
  name='p', function=lambda: None, arguments=(), max_temp_bytes=10**9
)
CONTROL = dataclasses.replace(PROGRAM, fails_with='RESOURCE_EXHAUSTED')
EXPECTED = {'temp_bytes': 10**6, 'bytes_accessed': 10**8, 'flops': 10**8}


def test_what_was_expected_is_no_fault():
  assert report.judge(PROGRAM, EXPECTED, EXPECTED) == []
  better = {name: value / 2 for name, value in EXPECTED.items()}
  assert report.judge(PROGRAM, better, EXPECTED) == []


@pytest.mark.parametrize('name', report.COMPARED)
def test_a_fifth_more_than_expected_is_a_fault(name):
  worse = EXPECTED | {name: EXPECTED[name] * 1.2}
  (fault,) = report.judge(PROGRAM, worse, EXPECTED)
  assert name in fault


def test_what_the_baseline_does_not_know_is_a_fault():
  (fault,) = report.judge(PROGRAM, EXPECTED, None)
  assert '--update' in fault
  assert report.stale({'gone': {}, 'p': {}}, {'p'}) == ['gone']


def test_an_overflow_is_a_fault_whatever_the_baseline_says():
  failed = {'error': 'JaxRuntimeError: RESOURCE_EXHAUSTED: vmem'}
  assert report.judge(PROGRAM, failed, EXPECTED) == [failed['error']]
  assert report.judge(CONTROL, failed, None) == []


def test_a_copied_pool_is_a_fault_even_if_the_baseline_has_it():
  copied = EXPECTED | {'temp_bytes': 10**9}
  (fault,) = report.judge(PROGRAM, copied, copied)
  assert 'copied' in fault


def test_bytes_far_above_the_floor_are_a_fault():
  program = dataclasses.replace(PROGRAM, floor_bytes=10**8)
  assert report.judge(program, EXPECTED, EXPECTED) == []
  program = dataclasses.replace(PROGRAM, floor_bytes=7 * 10**7)
  (fault,) = report.judge(program, EXPECTED, EXPECTED)
  assert 'floor' in fault


def test_a_control_that_passes_is_a_fault():
  (fault,) = report.judge(CONTROL, EXPECTED, EXPECTED)
  assert 'must fail' in fault
