# SPDX-License-Identifier: MIT
"""What requests may ask, and what is refused by name."""

import numpy as np
import pytest

from jspec import errors
from jspec.decode import options


def test_stack_lays_bad_words_out_backwards_and_pads():
  found = options.stack(
    [
      options.LogitOptions(),
      options.LogitOptions(
        repetition_penalty=1.5,
        presence_penalty=-2,
        frequency_penalty=0.25,
        logit_bias=((7, -100), (0, 1.5)),
        min_tokens=3,
        bad_words=((4,), (1, 2, 3), tuple(range(8))),
      ),
    ]
  )
  np.testing.assert_array_equal(found.repetition, [1, 1.5])
  np.testing.assert_allclose(found.repetition_inverse, [1, 1 / 1.5])
  np.testing.assert_array_equal(found.presence, [0, -2])
  np.testing.assert_array_equal(found.frequency, [0, 0.25])
  np.testing.assert_array_equal(found.min_tokens, [0, 3])
  assert found.bias_ids.shape == (2, 300)
  np.testing.assert_array_equal(found.bias_ids[1, :3], [7, 0, -1])
  np.testing.assert_array_equal(found.bias_values[1, :3], [-100, 1.5, 0])
  assert found.bad_prefixes.shape == (2, 32, 7)
  np.testing.assert_array_equal(found.bad_last[1, :4], [4, 3, 7, -1])
  np.testing.assert_array_equal(
    found.bad_prefixes[1, :3],
    [[-1] * 7, [2, 1, -1, -1, -1, -1, -1], [6, 5, 4, 3, 2, 1, 0]],
  )
  assert (np.asarray(found.bias_ids[0]) == -1).all()
  assert (np.asarray(found.bad_last[0]) == -1).all()


@pytest.mark.parametrize(
  'asked',
  [
    {'repetition_penalty': 0},
    {'repetition_penalty': -1.0},
    {'repetition_penalty': float('nan')},
    {'repetition_penalty': 1e9},
    {'repetition_penalty': 1e-46},
    {'presence_penalty': 2.1},
    {'presence_penalty': '1'},
    {'frequency_penalty': -2.1},
    {'frequency_penalty': float('inf')},
    {'logit_bias': {1: 2.0}},
    {'logit_bias': ((1, 2.0, 3),)},
    {'logit_bias': ((1, 100.5),)},
    {'logit_bias': ((1, float('nan')),)},
    {'logit_bias': ((-1, 1.0),)},
    {'logit_bias': ((True, 1.0),)},
    {'logit_bias': ((1, 1.0), (1, 2.0))},
    {'logit_bias': tuple((i, 1.0) for i in range(301))},
    {'min_tokens': -1},
    {'min_tokens': 1.5},
    {'min_tokens': 2**31},
    {'bad_words': ['a']},
    {'bad_words': ((),)},
    {'bad_words': ((-1,),)},
    {'bad_words': (tuple(range(9)),)},
    {'bad_words': tuple((i,) for i in range(33))},
  ],
)
def test_options_name_the_field_when_it_is_out_of_range(asked):
  with pytest.raises(errors.UserError, match=next(iter(asked))) as info:
    options.LogitOptions(**asked)
  assert '\n' not in str(info.value)


def test_options_at_their_limits_are_taken():
  for sign in (-1, 1):
    options.LogitOptions(
      repetition_penalty=100.0**sign,
      presence_penalty=2 * sign,
      frequency_penalty=2.0 * sign,
      logit_bias=tuple((i, 100 * sign) for i in range(300)),
      min_tokens=2**31 - 1,
      bad_words=tuple(tuple(range(8)) for _ in range(32)),
    )


def test_check_names_ids_outside_the_vocabulary():
  inside = options.LogitOptions(logit_bias=((9, 1.0),), bad_words=((0, 9),))
  options.check(inside, 10)
  with pytest.raises(errors.UserError, match='logit_bias names token 9'):
    options.check(inside, 9)
  words = options.LogitOptions(bad_words=((0, 9), (12, 3)))
  with pytest.raises(errors.UserError, match='bad_words names token 12'):
    options.check(words, 10)
