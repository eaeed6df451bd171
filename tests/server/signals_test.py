# SPDX-License-Identifier: MIT
"""Signals to a real process under load: no accepted stream without an end."""

import concurrent.futures
import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest

from tests.server import running


@contextlib.contextmanager
def process(grace_s, pause_s):
  """Runs the server; yields the process, its URL and the lines of its log."""
  made = subprocess.Popen(
    [sys.executable, '-m', 'tests.server.process', str(grace_s), str(pause_s)],
    stderr=subprocess.PIPE,
    text=True,
  )
  lines = []
  reader = threading.Thread(target=lambda: lines.extend(made.stderr))
  try:
    url = None
    while url is None:
      line = made.stderr.readline()
      assert line, 'the process ended'
      found = re.search(r'http://127\.0\.0\.1:\d+', line)
      url = found and found[0]
    reader.start()
    running.until(
      lambda: httpx.get(url + '/ready', timeout=5).status_code == 200
    )
    yield made, url, lines
  finally:
    made.kill()
    made.wait(10)
    reader.join(5)
    made.stderr.close()


def stream(url, max_tokens, began):
  """Reads a stream to its end; returns its events."""
  body = {'prompt': 'x', 'max_tokens': max_tokens, 'stream': True}
  events = []
  with httpx.stream(
    'POST', url + '/v1/completions', json=body, timeout=30
  ) as response:
    if response.status_code != 200:
      response.read()
      return response.status_code
    began.release()
    for line in response.iter_lines():
      if line:
        events.append(line.removeprefix('data: '))
  return events


def num_open(url):
  """Requests that the server accepted and has not finished."""
  status = httpx.get(url + '/v1/jspec/status', timeout=5).json()
  return status['running'] + status['waiting']


def num_done(futures):
  return sum(future.done() for future in futures)


def stopped(grace_s, pause_s, max_tokens, num=8, signals=1):
  """Streams that ran when the signal came, and how the process ended."""
  with process(grace_s, pause_s) as (made, url, lines):
    began = threading.Semaphore(0)
    with concurrent.futures.ThreadPoolExecutor(num) as pool:
      reading = [
        pool.submit(stream, url, max_tokens, began) for _ in range(num)
      ]
      for _ in range(4):  # As many as there are rows.
        assert began.acquire(timeout=20)
      running.until(lambda: num_open(url) + num_done(reading) >= num)
      made.send_signal(signal.SIGTERM)
      time.sleep(0.2)
      status = None
      with contextlib.suppress(httpx.TransportError):
        late = httpx.post(
          url + '/v1/completions', json={'prompt': 'x'}, timeout=5
        )
        status = late.status_code
      for _ in range(signals - 1):
        made.send_signal(signal.SIGTERM)
      found = [future.result(timeout=30) for future in reading]
    code = made.wait(20)
  return found, status, code, lines


def test_accepted_requests_finish():
  found, status, code, lines = stopped(20, 0.02, 60)
  assert code == 0
  assert status == 503
  for events in found:
    assert events[-1] == '[DONE]'
    assert json.loads(events[-2])['choices'][0]['finish_reason'] == 'length'
  assert all(line.startswith('{') for line in lines), lines


@pytest.mark.parametrize('grace_s, signals', [(0.3, 1), (60, 2)])
def test_what_does_not_finish_in_time_is_told_so(grace_s, signals):
  began = time.monotonic()
  found, _, code, _ = stopped(grace_s, 0.1, 500, signals=signals)
  assert time.monotonic() - began < 40
  assert code == 0
  for events in found:
    assert events[-1] == '[DONE]'
    assert json.loads(events[-2])['error']['code'] == 'unavailable'


@pytest.mark.skipif(not hasattr(signal, 'SIGHUP'), reason='there is no SIGHUP')
def test_hangup_loads_drafters_again_and_streams_go_on():
  with process(20, 0.02) as (made, url, lines):
    began = threading.Semaphore(0)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      reading = pool.submit(stream, url, 60, began)
      assert began.acquire(timeout=20)
      made.send_signal(signal.SIGHUP)
      running.until(lambda: any('drafter swapped' in line for line in lines))
      assert not reading.done()
      events = reading.result(timeout=30)
    assert json.loads(events[-2])['choices'][0]['finish_reason'] == 'length'
    made.send_signal(signal.SIGTERM)
    assert made.wait(20) == 0
