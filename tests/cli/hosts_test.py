# SPDX-License-Identifier: MIT
"""Flags for devices and hosts: what goes together."""

import argparse

import jax
import pytest

from jspec import distributed, errors
from jspec.cli import hosts
from tests import starting


def flags(*words):
  parser = argparse.ArgumentParser()
  hosts.add(parser)
  return parser.parse_args(words)


def test_without_flags_there_is_one_device_and_nobody_else():
  assert hosts.join(flags()) == hosts.Hosts()
  assert hosts.join(flags('--devices', '1')) == hosts.Hosts()


def test_devices_of_one_process_make_a_mesh():
  with hosts.joined(flags('--devices', '4')) as found:
    assert dict(found.mesh.shape) == {'model': 4}
    assert not found.follows


@pytest.mark.parametrize(
  'words, message',
  [
    (['--devices', '9'], 'JAX sees 8'),
    (['--devices', '2', '--all-hosts'], 'leave it out'),
    (['--coordinator', '10.0.0.2:1'], 'need --coordinator, --num-processes'),
    (['--process-id', '0', '--num-processes', '2'], 'need --coordinator'),
    (
      ['--coordinator=h:x', '--process-id=0', '--num-processes=2'],
      'no HOST:PORT',
    ),
    (
      ['--coordinator=h:1', '--process-id=2', '--num-processes=2'],
      'ids go from 0',
    ),
  ],
)
def test_flags_that_do_not_go_together_are_refused(words, message):
  with pytest.raises(errors.UserError, match=message):
    hosts.join(flags(*words))


def test_a_first_process_that_does_not_come_is_a_line(monkeypatch):
  monkeypatch.setattr(distributed, 'START_S', 0.3)
  where = starting.coordinator()
  with pytest.raises(
    errors.UserError, match=f'cannot join .*{where}: .*refuse'
  ):
    distributed.start(where, 2, 1)


def test_what_is_raised_is_passed_on_where_there_is_nobody_else():
  with pytest.raises(errors.UserError, match='as it was'):
    with hosts.joined(flags()):
      raise errors.UserError('as it was')


def test_models_are_loaded_where_they_are_on_a_cpu():
  with hosts.loading(hosts.Hosts(jax.make_mesh((2,), ('model',)))):
    array = jax.numpy.zeros(1)
  assert array.devices() == {jax.devices()[0]}


@pytest.mark.parametrize('text', ['', 'host', ':1', 'h:', 'h:0', 'h:65536'])
def test_coordinators_without_host_or_port_are_refused(text):
  with pytest.raises(errors.UserError, match='HOST:PORT'):
    distributed.host_of(text)


def test_coordinators_have_a_host():
  assert distributed.host_of('10.0.0.2:8476') == '10.0.0.2'
  assert distributed.host_of('[::1]:8476') == '::1'
