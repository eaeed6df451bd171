# SPDX-License-Identifier: MIT
"""Offline generation: a fixed number of rows, refilled from a list of prompts.

`Decoder` compiles its programs once and holds them as `Compiled` objects, so
nothing recompiles while it runs. The programs are:

  admit, start        give a row to a request, let it decode
  prefill-c           one row, c prompt tokens, for c in `PREFILL_CHUNKS`
  rounds              all rows, up to `num_rounds` rounds

A token depends on its prompt, its sampling parameters and the target alone: not
on the neighbours, the number of rows, or the drafter (rule R1).
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jspec import errors, tree
from jspec.decode import prefill, sampling
from jspec.decode import round as round_lib
from jspec.decode.verify import api as verify

PREFILL_CHUNKS = (16, 64, 256)
NUM_STOP_IDS = 8


@dataclasses.dataclass(frozen=True)
class Output:
  """The answer to one prompt.

  Attributes:
    tokens: emitted tokens, the stop id included if one ended the answer.
    finish_reason: 'stop' or 'length'.
    num_rounds: rounds it took; len(tokens) / num_rounds is tokens_per_round.
    num_drafted: draft nodes verified at each depth.
    num_accepted: drafts accepted and emitted at each depth, no bonus.
  """

  tokens: list[int]
  finish_reason: str
  num_rounds: int
  num_drafted: list[int]
  num_accepted: list[int]


@dataclasses.dataclass
class Timing:
  """Seconds spent since the decoder was made."""

  compile_s: float = 0.0
  prefill_s: float = 0.0
  decode_s: float = 0.0


class Decoder:
  """Decodes any number of prompts on `num_rows` rows."""

  def __init__(
    self,
    target,
    drafter=None,
    *,
    num_rows: int = 8,
    max_len: int | None = None,
    page_size: int | None = None,
    num_rounds: int = 8,
    rule: str = verify.WALK,
  ):
    """Compiles every program.

    Args:
      target: the model to decode.
      drafter: who drafts; None decodes plainly.
      num_rows: requests decoded side by side.
      max_len: most tokens of prompt and answer together; None means the
        target's own limit.
      page_size: cached tokens in a page; None means 32, and 128 on TPUs, which
        copy shorter pages of narrow heads (`kernels/README.md`).
      num_rounds: rounds between two looks of the host.
      rule: how drafts are verified (`verify.api`). The default keeps the
        tokens of plain decoding; the others sample drafts and keep its law.

    Raises:
      UserError: `max_len` exceeds the target's context, a draft has more nodes
        than a round verifies, or the rule is not for such drafts.
    """
    self.max_len = target.max_len if max_len is None else max_len
    if self.max_len > target.max_len:
      raise errors.UserError(
        f"max_len={max_len} exceeds the target's context of "
        f'{target.max_len} tokens; lower it'
      )
    if drafter is not None:
      tree.check_size(drafter.num_draft_tokens + 1)
    if page_size is None:
      page_size = 128 if jax.default_backend() == 'tpu' else 32
    self.timing = Timing()
    self._target, self._drafter = target, drafter
    self._form = _form(drafter)
    self._num_rows, self._num_rounds = num_rows, num_rounds
    self._state = round_lib.init_state(
      target,
      drafter,
      num_rows=num_rows,
      max_len=self.max_len,
      page_size=page_size,
      num_stop_ids=NUM_STOP_IDS,
    )
    began = time.perf_counter()
    # Float32 must mean float32, or one node and several round differently by
    # more than a tie; TPUs and GPUs multiply in less by default.
    with jax.default_matmul_precision('highest'):
      self._compile(self._state, rule)
    self.timing.compile_s = time.perf_counter() - began

  def _compile(self, state, rule):
    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    flag = jax.ShapeDtypeStruct((), jnp.bool_)
    request = sampling.stack([sampling.SamplingParams()])
    stop_ids = jax.ShapeDtypeStruct((NUM_STOP_IDS,), jnp.int32)
    target, drafter = self._target, self._drafter

    def compiled(function, state_index, *args):
      return (
        jax.jit(function, donate_argnums=state_index).lower(*args).compile()
      )

    self._admit = compiled(
      prefill.admit,
      1,
      drafter,
      state,
      scalar,
      scalar,
      scalar,
      request,
      stop_ids,
    )
    self._start = compiled(prefill.start, 0, state, scalar, scalar)
    self._prefill = {
      chunk: compiled(
        prefill.prefill,
        2,
        target,
        drafter,
        state,
        scalar,
        jax.ShapeDtypeStruct((chunk,), jnp.int32),
        scalar,
        scalar,
      )
      for chunk in PREFILL_CHUNKS
      if chunk == PREFILL_CHUNKS[0] or chunk <= self.max_len
    }
    self._rounds = compiled(
      functools.partial(round_lib.run_rounds, rule=rule),
      2,
      target,
      drafter,
      state,
      scalar,
      flag,
    )

  def use(self, drafter) -> None:
    """Drafts with other weights from here on; the programs stay.

    Call it between two `generate`s: a row that decodes would go on with what
    the old weights made of its prompt.

    Raises:
      ValueError: it differs from the decoder's drafter in more than weights.
    """
    if _form(drafter) != self._form:
      raise ValueError(
        'this drafter differs from the one the decoder was made for in more'
        ' than its weights: make a Decoder for it'
      )
    self._drafter = drafter

  def generate(
    self,
    prompts: Sequence[Sequence[int]],
    params: sampling.SamplingParams | Sequence[sampling.SamplingParams],
    *,
    on_progress: Callable[[int, int], None] | None = None,
  ) -> list[Output]:
    """Answers every prompt, in the order given.

    Args:
      prompts: token ids; none may be empty or fill the context.
      params: one for all prompts or one for each. `max_tokens` is cut to what
        fits behind the prompt.
      on_progress: called with (answers done, tokens emitted so far).

    Raises:
      UserError: a prompt is empty, too long, or has ids the target lacks.
    """
    if isinstance(params, sampling.SamplingParams):
      params = [params] * len(prompts)
    requests = list(zip(prompts, params, strict=True))
    for i, (prompt, request) in enumerate(requests):
      self._check(i, prompt, request)
    outputs = [None] * len(requests)
    waiting = list(range(len(requests)))[::-1]
    serving = [None] * self._num_rows
    num_tokens = 0
    while waiting or any(request is not None for request in serving):
      for row, request in enumerate(serving):
        if request is None and waiting:
          serving[row] = waiting.pop()
          self._place(row, *requests[serving[row]])
      self._run(bool(waiting))
      for row, output in self._finished(serving):
        outputs[serving[row]] = output
        serving[row] = None
        num_tokens += len(output.tokens)
        if on_progress is not None:
          on_progress(sum(o is not None for o in outputs), num_tokens)
    return outputs

  def _check(self, i, prompt, request):
    if not len(prompt):
      raise errors.UserError(f'prompt {i} is empty; give it one token or more')
    if len(prompt) >= self.max_len:
      raise errors.UserError(
        f'prompt {i} has {len(prompt)} tokens, but prompt and answer '
        f'together may have {self.max_len}; shorten it'
      )
    if not 0 <= min(prompt) <= max(prompt) < self._target.vocab_size:
      raise errors.UserError(
        f"prompt {i} holds token ids outside the target's vocabulary of "
        f"{self._target.vocab_size}; use the target's own tokenizer"
      )
    if len(request.stop_ids) > NUM_STOP_IDS:
      raise errors.UserError(
        f'prompt {i} has {len(request.stop_ids)} stop ids; at most '
        f'{NUM_STOP_IDS} are supported'
      )

  def _place(self, row, prompt, request):
    began = time.perf_counter()
    stop_ids = np.full((NUM_STOP_IDS,), -1, np.int32)
    stop_ids[: len(request.stop_ids)] = request.stop_ids
    row = np.int32(row)
    state = self._admit(
      self._drafter,
      self._state,
      row,
      np.int32(prompt[-1]),
      np.int32(0),
      sampling.stack([request]),
      stop_ids,
    )
    done = 0
    while done < len(prompt) - 1:
      left = len(prompt) - 1 - done
      chunk = _chunk(left, self._prefill)
      num = min(left, chunk)
      tokens = np.zeros((chunk,), np.int32)
      tokens[:num] = prompt[done : done + num]
      done += num
      state = self._prefill[chunk](
        self._target,
        self._drafter,
        state,
        row,
        tokens,
        np.int32(num),
        np.int32(prompt[done]),
      )
    budget = min(request.max_tokens, self.max_len - len(prompt))
    self._state = jax.block_until_ready(
      self._start(state, row, np.int32(budget))
    )
    self.timing.prefill_s += time.perf_counter() - began

  def _run(self, wants_rows):
    began = time.perf_counter()
    self._state = jax.block_until_ready(
      self._rounds(
        self._target,
        self._drafter,
        self._state,
        np.int32(self._num_rounds),
        np.bool_(wants_rows),
      )
    )
    self.timing.decode_s += time.perf_counter() - began

  def _finished(self, serving):
    """Reads the rows that ended; raises if any row lost its page."""
    state = self._state
    if bool(state.cache.table.dropped):
      raise RuntimeError('a row was committed without a page to hold it')
    remaining = np.asarray(state.remaining)
    for row, request in enumerate(serving):
      if request is None or remaining[row] > 0:
        continue
      num_output = int(state.num_output[row])
      tokens = np.asarray(state.output[row])[:num_output].tolist()
      if min(tokens) < 0:
        raise errors.UserError(
          f'the target gives no finite logit behind {num_output - 1} tokens of'
          ' an answer; check its weights'
        )
      yield (
        row,
        Output(
          tokens=tokens,
          finish_reason='stop' if bool(state.is_stopped[row]) else 'length',
          num_rounds=int(state.stats.num_rounds[row]),
          num_drafted=np.asarray(state.stats.num_drafted[row]).tolist(),
          num_accepted=np.asarray(state.stats.num_accepted[row]).tolist(),
        ),
      )


def generate(target, drafter, prompts, params, **options) -> list[Output]:
  """Answers `prompts` with a fresh `Decoder` made with `options`."""
  return Decoder(target, drafter, **options).generate(prompts, params)


def _form(drafter):
  """All of a drafter that its programs were compiled for."""
  leaves, structure = jax.tree.flatten(drafter)
  return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def _chunk(left, chunks):
  """The smallest chunk that holds `left` tokens, else the largest."""
  fitting = [chunk for chunk in chunks if chunk >= left]
  return min(fitting) if fitting else max(chunks)
