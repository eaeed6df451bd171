# SPDX-License-Identifier: MIT
"""Several drafters in one text, each with its options and a name."""

import pytest

from jspec import errors, loading
from jspec.cli import mixture
from jspec.drafters import mixed, ngram
from jspec.serve import members
from tests.evals import small


@pytest.fixture(scope='module')
def loaded():
  return small.loaded()


@pytest.mark.parametrize(
  ('spec', 'expected'),
  [
    ('ngram', [(None, 'ngram')]),
    ('ngram,num_draft_tokens=2', [(None, 'ngram,num_draft_tokens=2')]),
    ('shipped,ngram', [(None, 'shipped'), (None, 'ngram')]),
    ('a=ngram,b=suffix', [('a', 'ngram'), ('b', 'suffix')]),
    (
      'shipped,tree_size=7,f=ngram,num_draft_tokens=2,suffix,scope=local',
      [
        (None, 'shipped,tree_size=7'),
        ('f', 'ngram,num_draft_tokens=2'),
        (None, 'suffix,scope=local'),
      ],
    ),
    ('mine=pkg.own:make,size=3', [('mine', 'pkg.own:make,size=3')]),
    # A path or a time is no module:attr.
    ('pkg:make,path=/a:b,at=1:2', [(None, 'pkg:make,path=/a:b,at=1:2')]),
  ],
)
def test_parts_belong_to_the_drafter_before_them(spec, expected):
  assert mixture.split(spec) == expected


def test_folders_are_drafters_and_give_their_name(tmp_path):
  folder = tmp_path / 'run_7'
  folder.mkdir()
  spec = f'{folder},tree_size=3,other={folder}'
  assert mixture.split(spec) == [
    (None, f'{folder},tree_size=3'),
    ('other', str(folder)),
  ]
  assert mixture.short_name(f'{folder},tree_size=3') == 'run_7'
  assert mixture.short_name('pkg.own:make,size=3') == 'make'
  assert mixture.short_name('suffix,scope=local') == 'suffix'


def test_one_drafter_is_no_mixture_unless_it_has_a_name(loaded):
  one = mixture.load('ngram,num_draft_tokens=2', loaded)
  assert isinstance(one, ngram.NGram)
  assert mixture.load('none', loaded) is None
  named = mixture.load('copy=ngram', loaded)
  assert isinstance(named, mixed.Mixed)
  assert members.names(named) == ('copy',)
  assert members.names(one) == members.names(None) == (None,)


def test_several_are_mixed_in_order(loaded):
  found = mixture.load(
    'short=ngram,num_draft_tokens=1,ngram,num_draft_tokens=4', loaded
  )
  assert found.names == ('short', 'ngram')
  assert [member.num_draft_tokens for member in found.members] == [1, 4]


@pytest.mark.parametrize(
  ('spec', 'message'),
  [
    ('ngram,ngram', 'two drafters are called ngram; name them'),
    ('a=ngram,a=suffix', 'two drafters are called a;'),
    ('ngram,none', 'leave it out'),
    ('ngram,a=none', 'leave it out'),
    ('none=ngram,suffix', 'leave it out'),
    ('tree_size=3', "'3' is no drafter"),
    ('ngram,eagle', "unknown drafter 'eagle'"),
    ('ngram,suffix,speed=3', 'speed: no option of suffix'),
    ('ngram,', "unknown drafter ''"),
  ],
)
def test_what_does_not_tell_them_apart_is_refused(loaded, spec, message):
  with pytest.raises(errors.UserError, match=message):
    mixture.load(spec, loaded)


def test_programs_that_do_not_serve_take_one(loaded):
  with pytest.raises(errors.UserError, match='cannot read option'):
    loading.load_drafter('ngram,suffix', loaded)
