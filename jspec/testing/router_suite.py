# SPDX-License-Identifier: MIT
"""What every router must do: `check(make, drafters)` in a test of yours."""

from collections.abc import Callable, Sequence

from jspec.routing import base

TEXTS = (
  '',
  'Hello!',
  'def f(x):\n  return x + 1\n' * 200,
  'How many apples are 3 times 4 apples?',
  '\x00\ud7ff\U0001f600 ' * 50,
  'a' * 100_000,
)


def check(
  make: Callable[[], base.Router], drafters: Sequence[str | None]
) -> None:
  """Fails with an AssertionError that says what is wrong.

  Args:
    make: a router that has seen nothing.
    drafters: whom it may choose; requests name each of them too.
  """
  for named in (None, *drafters):
    router = make()
    for i, text in enumerate(TEXTS * 8):
      choice = router.choose(base.Request(f'model-{i % 3}', named, text))
      if choice is None:
        continue
      assert choice.drafter in drafters, (
        f'{choice.drafter!r} drafts for {text[:20]!r}, which nobody serves'
      )
      assert choice.why, 'a choice without a reason cannot be reported'
      # Answers that fail, that are one token, and that are usual.
      for result in (
        base.Result(0, 0.0, 0),
        base.Result(1, 0.0, 1),
        base.Result(64, 0.5, 20),
      )[i % 3 :][:1]:
        router.observe(choice, result)
