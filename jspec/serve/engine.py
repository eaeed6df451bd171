# SPDX-License-Identifier: MIT
"""`Engine`: decodes many requests at once on programs compiled before traffic.

One `step` is one visit of the host. It asks the scheduler for the next launch,
sends it to the device without waiting, and then takes in the launch before it:

  host    plan n, send n | read n-1 | plan n+1, send n+1 | read n
  device  launch n-1     | launch n                      | launch n+1

so the device never waits for the host. A launch admits rows, prefills chunks
and runs several rounds. Tokens of a request depend on its prompt, its sampling
parameters and the target alone (rule `walk`): not on the neighbours, the
drafter, the policy, a preemption or a prefix that was found in the cache.
"""

import collections
import time
from collections.abc import Callable, Hashable, Sequence

from jax.sharding import Mesh

from jspec.depth import cost_table
from jspec.serve import (
  asks,
  confidence,
  events,
  executables,
  followers,
  forms,
  launch_times,
  members,
  metrics,
  programs,
  requests,
  scheduler,
  split,
  start_up,
  structured,
  swap,
  warm_up,
)
from jspec.serve import device as device_lib
from jspec.serve import sent as sent_lib
from jspec.serve import settings as settings_lib


class Engine:
  """Serves one target and one drafter, or several (`drafters.mixed`).

  Attributes:
    sizes: what the settings came to.
    programs: all that is ever run.
    metrics: counts since the engine was made.
    costs: what rounds cost, as measured and learned.
    forms: how launches draft; `forms.pinned` fixes it.
    policy: which of the policies plans.
    version: of the drafter; `swap` counts it up.
    on_launch: called with every launch of rounds that came back, what it used,
      the tokens it emitted and its seconds (None where its begin or end was not
      seen, or it did more than rounds); for benchmarks.
    on_lessons: called with every launch of rounds that came back and the
      lessons (`decode.lessons`) of its last round, one for each of its
      `plan.decodes`; for those who learn while they serve. None looks nothing
      up.
  """

  def __init__(
    self,
    target,
    drafter=None,
    settings: settings_lib.Settings | None = None,
    mesh: Mesh | None = None,
    *,
    costs: cost_table.CostTable | None = None,
    compiler: structured.Compiler | None = None,
    link: followers.Leader | None = None,
    kept: executables.Folder | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
  ):
    """Allocates the pools, compiles every program and measures rounds.

    Args:
      target: the model.
      drafter: who drafts; None decodes plainly.
      settings: what a user chooses; None: the defaults.
      mesh: devices that share the target out, on one axis `model`
        (`placement`); None: the first device alone.
      costs: what rounds cost; None: it is measured.
      compiler: reads the grammars of structured output; None: requests cannot
        have one, and the programs for it are not compiled.
      link: to the other processes of the mesh (`meeting.meet`), which `follow`;
        None: there are none.
      kept: where programs are kept between starts; None: nowhere.
      on_progress: called with (steps done, all of them, what was done), first
        for the programs and then for the measurements.

    Raises:
      UserError: see `start_up.parts` and `start_up.prepare`.

    Warns:
      RuntimeWarning: later, if a drafter on the host raises; it is then off.
    """
    parts = start_up.parts(target, drafter, settings)
    self._settings, self._given = parts.settings, parts.given
    self._host, drafter, sizes = parts.host, parts.drafter, parts.sizes
    self._drafter, self.sizes = drafter, sizes
    self._vocab_size, self._compiler = target.vocab_size, compiler
    num_drafts = 0 if drafter is None else drafter.num_draft_tokens
    self._confidence = confidence.Confidence(drafter, sizes.scales_confidence)
    self.metrics = metrics.Metrics(num_drafts, self._confidence)
    began = time.perf_counter()
    self._device, self.programs = start_up.prepare(
      target,
      drafter,
      sizes,
      is_split=compiler is not None or self._host is not None,
      mesh=mesh,
      link=link,
      kept=kept,
      on_progress=on_progress,
    )
    self.metrics.compile_s = time.perf_counter() - began
    began = time.perf_counter()
    self.costs = warm_up.ready(
      self._device, sizes, costs, drafter is not None, on_progress
    )
    self.metrics.has_measured = costs is None
    self.metrics.warm_up_s = time.perf_counter() - began
    self.forms = forms.Forms(
      self._device, self.costs, num_drafts, sizes.scheduler.num_rounds
    )
    self.policy = self.version = 0
    self.on_launch = self.on_lessons = None
    self._scheduler = scheduler.Scheduler(sizes.scheduler)
    self.metrics.scheduler = self._scheduler
    self._in_flight = collections.deque()
    self._times = launch_times.LaunchTimes()
    self._alive = {}  # by request id
    self._admitted = {}  # row -> its last admission
    self._num_requests = 0

  # --- requests

  def submit(
    self,
    prompt: Sequence[int],
    ask: asks.Ask,
    *,
    request_id: Hashable | None = None,
    priority: int = 0,
  ) -> Hashable:
    """Lets a request wait for its turn; returns its id.

    Raises:
      UserError: the prompt or what is asked cannot be served (`asks.check`,
        `members.name`, `admission.max_tokens`).
    """
    if request_id is None:
      request_id = f'request-{self._num_requests}'
    self._num_requests += 1
    prompt = tuple(int(token) for token in prompt)
    asks.check(
      request_id, prompt, ask, self._vocab_size, self.sizes.policy_names
    )
    matcher = asks.matcher(request_id, ask, self._compiler)
    member = members.name(request_id, self._drafter, ask.drafter)
    is_reading = ask.num_prompt_logprobs is not None
    self._scheduler.submit(
      requests.Request(
        id=request_id,
        prompt=prompt,
        max_tokens=ask.params.max_tokens,
        priority=priority,
        # Rows that are not read again have no logits. An id may come again.
        namespace=self._num_requests if is_reading else (self.version, member),
        params=ask,
      )
    )
    self._alive[request_id] = sent_lib.Alive(len(prompt), ask, matcher, member)
    return request_id

  def cancel(self, request_id: Hashable) -> bool:
    """Ends a request at once; False if it is not alive."""
    self._alive.pop(request_id, None)
    return self._scheduler.cancel(request_id)

  def swap(self, drafter, name: str | None = None) -> int:
    """Lets a drafter take another's place; returns its version.

    Args:
      drafter: who drafts from the next launch on.
      name: which member of a mixture it replaces; None: the only drafter.

    Raises:
      UserError: it cannot (`swap.replaced`), and nothing changed.
    """
    self._given = swap.replaced(self._given, drafter, name)
    self._drafter = settings_lib.extended(self._settings, self._given)
    self._device.set_drafter(self._drafter)
    self._confidence.forget()
    self.forget_prefixes()
    self.version += 1
    return self.version

  @property
  def num_launches(self) -> int:
    """Launches planned so far; the next has this number and one."""
    return self._scheduler.num_planned

  @property
  def has_work(self) -> bool:
    """Whether `step` has anything left to do."""
    return self._has_requests or bool(self._in_flight)

  @property
  def _has_requests(self):
    return bool(self._scheduler.num_waiting + self._scheduler.num_running)

  # --- one visit of the host

  def step(self) -> list[asks.Event]:
    """Sends the next launch and takes in the one before it."""
    began = time.perf_counter()
    wanted = self._scheduler.plan()
    read = self._read(wanted)
    choice = self._choose(wanted) if wanted.decodes else None
    self.metrics.host_s += time.perf_counter() - began
    found = []
    if choice is not None and self._is_split(wanted, choice):
      found, sent = self._split(wanted, choice, read)
    else:
      sent = self._send(wanted, choice, read)
    self._in_flight.append(sent)
    # Without requests nothing will be sent that would hide the waiting.
    while len(self._in_flight) > (1 if self._has_requests else 0):
      found += self._take_in(self._in_flight.popleft())
    return found

  def drain(self) -> list[asks.Event]:
    """Takes in what is on its way and sends nothing, so the device rests."""
    found = []
    while self._in_flight:
      found += self._take_in(self._in_flight.popleft())
    return found

  def close(self) -> None:
    """Lets the processes end that follow this one; nothing is asked after."""
    self._device.close()

  def forget_prefixes(self) -> None:
    """Empties the prefix cache of all that no running request holds."""
    self._scheduler.ledger.forget()

  def _read(self, wanted):
    """Sends for admissions and prompts; returns what is to be read of them."""
    for admission in wanted.admitted:
      num_prompt = self._alive[admission.request_id].admit()
      self._device.admit(admission, num_prompt)
      self._admitted[admission.row] = admission
      if len(admission.tokens) == 1:  # Nothing to prefill.
        self._start(admission.row)
    read = []
    for chunk in wanted.chunks:
      request_id = self._admitted[chunk.row].request_id
      alive = self._alive[request_id]
      first, end = alive.span(chunk)
      found = self._device.prefill(chunk, first < end)
      if first < end:
        read.append(sent_lib.Read(request_id, alive, first, end, found))
      if chunk.is_last:
        self._start(chunk.row)
    return read

  def _send(self, wanted, choice, read):
    """Sends the rounds of a launch."""
    began = time.perf_counter()
    report = None if choice is None else self._run(wanted, choice)
    self.metrics.host_s += time.perf_counter() - began
    return sent_lib.Sent(wanted, choice, report, read, began)

  def _is_split(self, wanted, choice):
    """Whether the host has a part in the rounds."""
    is_drafting = choice.program == programs.FUSED
    is_on_host = self._host is not None and is_drafting
    return is_on_host or any(self._matchers(wanted))

  def _split(self, wanted, choice, read):
    """The same, with a look of the host at the drafts of its one round."""
    began = time.perf_counter()
    draft = self._device.no_draft(len(wanted.decodes))
    is_given = choice.program == programs.FUSED
    if is_given and self._host is None:
      draft = self._device.propose(*wanted.places)
    # What may follow, and the host's drafts, depend on all that was said.
    found = self.drain()
    self._device.wait(draft)
    judging = time.perf_counter()
    if is_given and self._host is not None:
      draft = self._ask_host(wanted)
    given = split.judge(
      draft, self._matchers(wanted), self._vocab_size, is_given=is_given
    )
    report = self._run(wanted, choice, given)
    self.metrics.num_split += 1
    self.metrics.host_s += time.perf_counter() - judging
    return found, sent_lib.Sent(wanted, choice, report, read, began, True)

  def _ask_host(self, wanted):
    decodes = wanted.decodes
    texts = {
      place: (decode.row, self._scheduler.tokens(decode))
      for place, decode in enumerate(decodes)
      if self._scheduler.is_current(decode)
    }
    shape = self._device.bucket(len(decodes)), self.metrics.num_drafts + 1
    draft = self._host.propose(texts, shape)
    if self._host.problem:
      self.metrics.drafter_problem = self._host.problem
      self.forms.switch_off()
    return draft

  def _choose(self, wanted):
    decodes = wanted.decodes
    context = sum(decode.num_tokens for decode in decodes) / len(decodes)
    found = [self._alive.get(decode.request_id) for decode in decodes]
    wishes = asks.wishes(alive.ask for alive in found if alive)
    return self.forms.choose(len(decodes), context, wanted.num_rounds, **wishes)

  def _run(self, wanted, choice, given=None):
    return self._device.run(
      choice.program,
      *wanted.places,
      num_rounds=choice.num_rounds,
      wants_rows=self._scheduler.num_waiting > 0,
      costs=choice.costs,
      temperatures=self._confidence.temperatures(wanted.decodes),
      policy=self.policy,
      budget=choice.budget,
      given=given,
      wants_lessons=self.on_lessons is not None,
    )

  def _matchers(self, wanted):
    """Grammars of the rows; None where there is none, or no request by now."""
    found = [self._alive.get(d.request_id) for d in wanted.decodes]
    return [alive and alive.matcher for alive in found]

  def _start(self, row):
    self._device.start(row, self._admitted[row].max_tokens)

  def _take_in(self, sent):
    began = time.perf_counter()
    was_running = self._device.wait(sent.on_way)
    ended = time.perf_counter()
    self.metrics.wait_s += ended - began
    decodes = sent.plan.decodes
    answers = []
    if decodes:
      answers, used = device_lib.read(
        sent.report,
        [decode.row for decode in decodes],
        with_logprobs=any(self._wants(d.request_id) for d in decodes),
        with_lessons=self.on_lessons is not None,
      )
      self._learn(sent, answers, used, ended, was_running)
      self._confidence.observe(decodes, used)
    elif sent.plan.admitted or sent.plan.chunks:
      self._times.missed()
    found = events.of_prompts(sent, self._alive)
    found += events.of_answers(
      sent.plan, answers, self._alive, self._scheduler, self.metrics
    )
    self.metrics.host_s += time.perf_counter() - ended
    return found

  def _learn(self, sent, answers, used, ended, was_running):
    """Counts a launch, and times it where its begin and end were seen."""
    self.metrics.launched(sent.choice.form, used)
    self.metrics.num_late += not was_running
    num_tokens = sum(len(answer.tokens) for answer in answers)
    did_more = sent.plan.admitted or sent.plan.chunks
    # Grammars take time of their own, which says nothing of drafting.
    is_usual = not sent.is_split or self._host is not None
    seconds = self._times.came_back(sent.sent_s, ended, saw_end=was_running)
    if not num_tokens or did_more or not is_usual:
      seconds = None
    if seconds is not None:
      self.forms.record(
        sent.choice, seconds, num_tokens, used, is_split=sent.is_split
      )
    if self.on_launch is not None:
      self.on_launch(sent, used, num_tokens, seconds)
    if used.lessons is not None:
      self.on_lessons(sent, used.lessons)

  def _wants(self, request_id):
    alive = self._alive.get(request_id)
    return alive is not None and alive.wants_logprobs
