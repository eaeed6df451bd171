# SPDX-License-Identifier: MIT
"""`jspec bench step --random-layers`: flags that do not belong together."""

STEP = ('bench', 'step', '--target', 'qwen3_8b')


def test_flags_of_random_weights_need_their_layers(refused):
  assert 'give --random-layers' in refused(*STEP, '--random-vocab', '64')
  message = refused(*STEP, '--random-layers', '1', '--drafter', 'ngram')
  assert 'have no drafter' in message


def test_a_shape_is_asked_for_what_it_has(refused):
  words = ('--random-layers', '37')
  assert 'has 36 layers, not 37' in refused(*STEP, *words)
  words = ('--random-layers', '1', '--random-experts', '4')
  assert 'has no experts' in refused(*STEP, *words)
