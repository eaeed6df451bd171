# SPDX-License-Identifier: MIT
"""`jspec serve`: every flag arrives, and what cannot be served is refused."""

import sys
import types

import numpy as np
import pytest

from jspec import errors
from jspec.cli import main, serve
from jspec.depth import guard
from jspec.server import extra, probe

FLAGS = {
  '--target': 'somewhere',
  '--drafter': 'a=ngram,suffix',
  '--host': '127.0.0.2',
  '--port': '18000',
  '--served-name': 'me',
  '--route': 'domain:code=a',
  '--api-key': 'secret',
  '--admin-key': 'hidden',
  '--max-queue': '7',
  '--max-body': '999',
  '--body-timeout': '1.5',
  '--request-timeout': '2.5',
  '--grace': '3.5',
  '--log-text': None,
  '--otlp-endpoint': 'http://127.0.0.1:4318',
  '--rows': '3',
  '--max-len': '96',
  '--num-pages': '5',
  '--rounds': '2',
  '--policy': 'static,depth=2',
  '--rule': 'token',
  '--seed': '9',
  '--require-spec': None,
  '--no-structured': None,
  '--measure-again': None,
  '--devices': '2',
  '--coordinator': '10.0.0.2:8476',
  '--num-processes': '2',
  '--process-id': '1',
  '--all-hosts': None,
}


@pytest.fixture
def args():
  words = [word for pair in FLAGS.items() for word in pair if word is not None]
  return main.parse(['serve', *words])


def test_every_flag_is_tried_here():
  flags = set()
  for action in (
    main.parser()._subparsers._group_actions[0].choices['serve']._actions
  ):
    flags.update(option for option in action.option_strings if '--' in option)
  assert flags - {'--help'} == set(FLAGS)


def test_no_flag_keeps_its_default(args):
  default = vars(main.parse(['serve']))
  same = [name for name, value in vars(args).items() if value == default[name]]
  assert same == ['run']


def test_limits_and_settings_are_those_of_the_flags(args, monkeypatch):
  monkeypatch.setenv('JSPEC_API_KEY', 'other')
  limits = serve.http_limits(args)
  assert (limits.max_queue, limits.max_body) == (7, 999)
  assert (limits.body_s, limits.request_s, limits.grace_s) == (1.5, 2.5, 3.5)
  assert limits.api_keys == ('secret', 'other')
  assert limits.admin_keys == ('hidden',)
  settings = serve.engine_settings(args, 1000)
  assert (settings.max_rows, settings.max_len) == (3, 96)
  assert (settings.num_pages, settings.num_rounds) == (5, 2)
  assert (settings.policies, settings.rule) == (('static,depth=2',), 'token')
  assert serve.engine_settings(args, 50).max_len == 50


def test_configuration_tells_all_but_the_keys(args):
  told = serve.configuration(args)
  assert told['api_key'] is True and told['admin_key'] is True
  assert 'secret' not in str(told) and 'hidden' not in str(told)
  assert {flag.removeprefix('--').replace('-', '_') for flag in FLAGS} == set(
    told
  )


@pytest.mark.parametrize(
  'spec, expected',
  [
    ('none', {}),
    ('shipped', {'shipped': None}),
    ('ngram,num_draft_tokens=2', {'ngram': None}),
    ('shipped,ngram', {'shipped': 'shipped', 'ngram': 'ngram'}),
    ('fast=ngram', {'fast': 'fast'}),
  ],
)
def test_names_of_drafters_are_the_engines(spec, expected):
  assert serve.drafters(spec) == expected
  assert set(serve.sources(spec)) == set(expected)


def test_sources_of_drafters_have_their_options():
  assert serve.sources('a=ngram,num_draft_tokens=2,suffix') == {
    'a': 'ngram,num_draft_tokens=2',
    'suffix': 'suffix',
  }


@pytest.mark.parametrize(
  'words',
  [['--port', '-1'], ['--rows', '0'], ['--nonsense'], ['--rule', 'nonsense']],
)
def test_bad_flags_are_refused(words):
  with pytest.raises(SystemExit) as stop:
    main.parse(['serve', *words])
  assert stop.value.code == 2


def test_demand_without_a_drafter_is_refused_before_anything_loads(capsys):
  words = ['serve', '--require-spec', '--drafter', 'none', '--target', 'absent']
  assert main.main(words) == 2
  assert 'nothing would be drafted' in capsys.readouterr().err


def test_route_to_nobody_is_refused_before_anything_loads(capsys):
  words = ['serve', '--route', 'model:fast=eagle', '--target', 'absent']
  assert main.main(words) == 2
  assert "no drafter 'eagle'" in capsys.readouterr().err


def test_missing_libraries_are_named(monkeypatch):
  monkeypatch.setitem(sys.modules, 'uvicorn', None)
  with pytest.raises(errors.UserError, match=r'jspec\[serve\]'):
    extra.check()


class Engine:
  """Drafts so many tokens in a request, with a form that was pinned."""

  def __init__(self, num_drafts, drafted, problem=''):
    self.metrics = types.SimpleNamespace(
      num_drafts=num_drafts, num_drafted=np.zeros(3, int), drafter_problem=''
    )
    self.forms = types.SimpleNamespace(pinned=None)
    self.sizes = types.SimpleNamespace(
      scheduler=types.SimpleNamespace(limit=64)
    )
    self.has_work, self.drafted, self.problem = False, drafted, problem

  def submit(self, prompt, ask):
    assert self.forms.pinned == guard.FULL
    self.has_work = True

  def step(self):
    self.metrics.num_drafted += self.drafted
    self.metrics.drafter_problem = self.problem
    self.has_work = False

  def forget_prefixes(self):
    self.has_forgotten = True


@pytest.mark.parametrize(
  'engine, reason',
  [
    (Engine(0, 0), 'there is no drafter'),
    (Engine(3, 0), 'no draft was verified'),
    (Engine(3, 1, 'it raised'), 'it raised'),
    (Engine(3, 1), ''),
  ],
)
def test_probe_says_why_nothing_is_drafted(engine, reason):
  found = probe.why_not(engine, list(range(30)))
  assert (reason in found) if reason else not found
  assert engine.forms.pinned is None
