# SPDX-License-Identifier: MIT
"""/metrics, for Prometheus: vLLM's names behind `jspec:`, and some of our own.

Counts are read when somebody asks, from the engine, the driver and two
histograms; serving a token costs one look at the clock. Of speculation:

  spec_decode_num_drafts                    rounds of rows that verified drafts
  spec_decode_num_draft_tokens              drafts that were verified
  spec_decode_num_accepted_tokens           of them, those that were kept
  spec_decode_num_accepted_tokens_per_pos   the same by depth, 0 the first

The token that the target adds to every round (the bonus) is in none of them, so
accepted over drafted is a rate, and 1 + accepted over drafts the mean length.

Of memory there are kv_cache_usage_perc, from 0 to 1 of the pages, prefix_cache_
queries and prefix_cache_hits, in tokens, and num_preemptions. A page that only
the prefix cache holds can be had, so it is not in use.
"""

from collections.abc import Iterator

import prometheus_client
from prometheus_client import core, registry

from jspec.serve import asks
from jspec.server import histogram, launches, streams
from jspec.server import served as served_lib

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
_PREFIX = 'jspec:'


class Metrics(registry.Collector):
  """All that is counted.

  Attributes:
    first_token: seconds from a request to its first token.
    queue, prefill: of those, until it had a row, and behind that.
    between_tokens: seconds from one token to the next; those of a launch share
      its time.
    launches: how full they were; None until the engine is there.
    compiles: of XLA since the engine is ready.
  """

  def __init__(self, served: served_lib.Served):
    self.first_token = histogram.Histogram()
    self.queue, self.prefill = histogram.Histogram(), histogram.Histogram()
    self.between_tokens = histogram.Histogram()
    self.launches = None
    self.compiles = launches.Compiles()
    self._served = served
    self._registry = prometheus_client.CollectorRegistry()
    self._registry.register(self)
    served.driver.on_event = self.heard

  def attach(self) -> None:
    """Listens to the engine, once it is there."""
    engine = self._served.driver.engine
    self.launches = launches.Launches(tuple(engine.sizes.row_buckets))
    engine.on_launch = self.launches
    self.compiles.start()

  def heard(
    self, stream: streams.Stream, index: int, event: asks.Event, now: float
  ) -> None:
    """Times an event."""
    if not event.tokens:
      return
    last = stream.progress[index].last_s
    if last is None:
      self.first_token.observe(now - stream.opened_s)
      if event.admitted_s is not None:
        self.queue.observe(event.admitted_s - stream.opened_s)
        self.prefill.observe(now - event.admitted_s)
    else:
      num = len(event.tokens)
      self.between_tokens.observe((now - last) / num, num)

  def text(self) -> bytes:
    """What Prometheus reads."""
    return prometheus_client.generate_latest(self._registry)

  def collect(self) -> Iterator[core.Metric]:
    """Yields all metrics, as they are now."""
    driver = self._served.driver
    rows = 0
    if driver.engine is not None:
      rows = driver.engine.sizes.scheduler.max_rows
    running = min(driver.num_open, rows)
    yield self._gauge('num_requests_running', 'answers with a row', running)
    yield self._gauge(
      'num_requests_waiting', 'answers without one', driver.num_open - running
    )
    yield self._counter(
      'queue_refusals', 'requests refused with 429', driver.num_refused
    )
    yield self._counter(
      'prompt_tokens', 'tokens of prompts', driver.num_prompt_tokens
    )
    yield self._labelled(
      'request_success',
      'answers that ended',
      'finished_reason',
      dict(driver.num_ended),
    )
    yield self._histogram(
      'time_to_first_token_seconds', 'from the request', self.first_token
    )
    yield self._histogram(
      'request_queue_time_seconds', 'until a row was free', self.queue
    )
    yield self._histogram(
      'request_prefill_time_seconds', 'to the first token', self.prefill
    )
    yield self._histogram(
      'inter_token_latency_seconds', 'between tokens', self.between_tokens
    )
    if driver.engine is not None:
      yield from self._of_engine(driver.engine.metrics)
      yield from self._of_pool(driver.engine.metrics.pool)
      yield self._gauge(
        'drafter_version', 'drafters swapped', driver.engine.version
      )
    if self.launches is not None:
      yield from self._of_launches(self.launches)

  def _of_engine(self, counts):
    depths = counts.num_by_depth.tolist()
    accepted = counts.num_accepted.tolist()
    for name, text, value in (
      ('generation_tokens', 'tokens of answers', counts.num_tokens),
      ('spec_decode_num_drafts', 'rounds with drafts', sum(depths[1:])),
      (
        'spec_decode_num_draft_tokens',
        'drafts verified',
        int(counts.num_drafted.sum()),
      ),
      ('spec_decode_num_accepted_tokens', 'drafts kept', sum(accepted)),
      ('rounds', 'rounds of rows', counts.num_rounds),
      ('broken_drafts', 'drafts dropped as they broke', counts.num_broken),
      ('failed_answers', 'answers that failed', counts.num_failed),
      ('host_seconds', 'seconds the host worked', counts.host_s),
      ('wait_seconds', 'seconds it waited for the device', counts.wait_s),
      ('compiles', 'programs compiled since ready', self.compiles.num),
    ):
      yield self._counter(name, text, value)
    yield self._labelled(
      'spec_decode_num_accepted_tokens_per_pos',
      'drafts kept by depth',
      'position',
      dict(enumerate(accepted)),
    )
    yield self._labelled(
      'rounds_by_depth',
      'rounds of rows that verified so many drafts',
      'depth',
      dict(enumerate(depths)),
    )
    yield self._labelled(
      'launches_by_form',
      'launches that drafted so',
      'form',
      dict(counts.num_launches),
    )
    yield self._gauge('compile_seconds', 'before traffic', counts.compile_s)
    yield self._gauge('warm_up_seconds', 'before traffic', counts.warm_up_s)
    yield self._gauge(
      'drafter_ok', '0: it was switched off', int(not counts.drafter_problem)
    )

  def _of_pool(self, pool):
    yield self._gauge(
      'kv_cache_usage_perc', '1: all pages', pool.num_used / pool.num_pages
    )
    yield self._labelled(
      'kv_pages',
      'pages that rows hold, that only the prefix cache holds, and free ones',
      'state',
      {'used': pool.num_used, 'cached': pool.num_idle, 'free': pool.num_free},
      core.GaugeMetricFamily,
    )
    for name, text, value in (
      (
        'prefix_cache_queries',
        'prompt tokens looked up',
        pool.num_queried_tokens,
      ),
      ('prefix_cache_hits', 'prompt tokens found', pool.num_hit_tokens),
      ('num_preemptions', 'rows that lost their pages', pool.num_preemptions),
    ):
      yield self._counter(name, text, value)

  def _of_launches(self, seen):
    yield self._labelled(
      'bucket_launches',
      'launches of so many compiled rows',
      'rows',
      dict(seen.num_by_bucket),
    )
    yield self._labelled(
      'bucket_rows',
      'rows that ran in them',
      'rows',
      dict(seen.rows_by_bucket),
    )
    yield self._counter('nodes', 'nodes verified', seen.nodes)
    yield self._counter(
      'padded_nodes', 'places for nodes that held none', seen.padded_nodes
    )

  def _gauge(self, name, text, value):
    found = core.GaugeMetricFamily(_PREFIX + name, text, labels=['model_name'])
    found.add_metric([self._served.names[0]], value)
    return found

  def _counter(self, name, text, value):
    found = core.CounterMetricFamily(
      _PREFIX + name, text, labels=['model_name']
    )
    found.add_metric([self._served.names[0]], value)
    return found

  def _labelled(
    self, name, text, label, values, family=core.CounterMetricFamily
  ):
    found = family(_PREFIX + name, text, labels=['model_name', label])
    for key, value in values.items():
      found.add_metric([self._served.names[0], str(key)], value)
    return found

  def _histogram(self, name, text, of):
    found = core.HistogramMetricFamily(
      _PREFIX + name, text, labels=['model_name']
    )
    found.add_metric([self._served.names[0]], of.buckets(), of.total)
    return found
