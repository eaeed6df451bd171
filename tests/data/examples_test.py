# SPDX-License-Identifier: MIT
"""Records become documents; what is left out is counted."""

import gzip
import json

import numpy as np
import pytest

from jspec import errors
from jspec.data import dropping, examples, sources

RECORDS = [
  {'id': 'a', 'ids': [1, 2, 3, 4], 'prompt_len': 2},
  {'id': 'b', 'ids': [1, 2], 'prompt_len': 2},
  {'id': 'c', 'ids': list(range(1, 9)), 'prompt_len': 2},
  {'id': 'd', 'ids': [1, 2, 3, 4, 5, 6, 7], 'prompt_len': 5},
]


def read(records, **changes):
  settings = dict(max_len=6, vocab_size=64) | changes
  entries = [
    sources.Entry(n, f'line {n + 1}', f'a.jsonl line {n + 1}', record)
    for n, record in enumerate(records)
  ]
  found = examples.Examples(entries, **settings)
  return list(found), found.counts


def test_reasons_are_counted():
  found, counts = read(RECORDS)
  assert [document.id for document in found] == ['a', 'c']
  assert counts == {'kept': 2, 'no_answer': 1, 'cut': 2, 'short_answer': 1}
  assert found[0].is_answer.tolist() == [False, False, True, True]
  assert len(found[1]) == 6


def test_messages_go_through_the_template():
  render = lambda record: [([5, 6, 7], [False, True, True])]  # noqa: E731
  found, _ = read([{'id': 'm', 'messages': []}], render=render)
  assert found[0].tokens.tolist() == [5, 6, 7]
  assert (found[0].id, found[0].group) == ('m', '')


def test_conversation_of_several_documents_is_held_out_as_one():
  text = ([5, 6, 7], [False, True, True])
  found, counts = read(
    [{'id': 'm', 'messages': []}], render=lambda record: [text, text]
  )
  assert [document.id for document in found] == ['m~1', 'm~2']
  assert {document.group for document in found} == {'m'}
  assert counts == {'kept': 2, 'split': 1}


def test_source_with_a_name_is_a_domain():
  found, _ = read([RECORDS[0] | {'domain': 'x'}], domain='math')
  assert (found[0].id, found[0].domain) == ('math/a', 'math')
  found, _ = read([RECORDS[0] | {'domain': 'x'}])
  assert (found[0].id, found[0].domain) == ('a', 'x')


def test_bad_records_are_named_counted_and_limited():
  bad = {'id': 'z', 'ids': [99], 'prompt_len': 0}
  records = [RECORDS[0], bad, RECORDS[2], bad]
  with pytest.raises(errors.UserError, match='^a.jsonl line 2: .*token 99'):
    read(records)
  dropped = dropping.Dropped(2)
  found, counts = read(records, on_bad=dropped)
  assert [document.id for document in found] == ['a', 'c']
  assert dropped.num == 2 and 'line 2' in str(dropped.first)
  assert counts == {'kept': 2, 'cut': 1}
  said = r'line 4.*bad record 2, .*allows 1; the first was a.jsonl line 2'
  with pytest.raises(errors.UserError, match=said):
    read(records, on_bad=dropping.Dropped(1))


@pytest.mark.parametrize(
  'record, said',
  [
    ({'ids': [1]}, 'prompt_len'),
    ({'text': 'x'}, 'needs `ids`'),
    ({'messages': []}, 'no chat template'),
    ({'ids': [1, 99], 'prompt_len': 1}, 'another target'),
  ],
)
def test_record_is_refused(record, said):
  with pytest.raises(errors.UserError, match=said):
    read([record])


def test_split_depends_on_the_id_alone():
  names = [f'n{i}' for i in range(2000)]
  held = [examples.is_held_out(name, 0.1) for name in names]
  assert 150 < sum(held) < 250
  # A larger share keeps what a smaller one held out.
  assert all(
    examples.is_held_out(name, 0.2)
    for name, is_held in zip(names, held, strict=True)
    if is_held
  )


def test_counts_are_of_answers_alone():
  found, _ = read(RECORDS)
  counts = examples.answer_counts(found, 64)
  assert counts[1] == counts[2] == 0
  assert counts[3] == 2
  assert counts.sum() == sum(document.is_answer.sum() for document in found)


def test_jsonl_reads_plain_and_compressed(tmp_path):
  text = ''.join(json.dumps(record) + '\n' for record in RECORDS)
  (tmp_path / 'a.jsonl').write_text(text)
  with gzip.open(tmp_path / 'a.jsonl.gz', 'wt') as file:
    file.write(text)
  assert sources.records(str(tmp_path / 'a.jsonl')) == RECORDS
  assert sources.records(str(tmp_path / 'a.jsonl.gz')) == RECORDS


def test_broken_files_are_refused(tmp_path):
  (tmp_path / 'a.jsonl').write_text('{"id": 1}\n{"id"\n')
  with pytest.raises(errors.UserError, match='line 2 is not JSON'):
    sources.records(str(tmp_path / 'a.jsonl'))
  data = gzip.compress(b'{"id": 1}\n' * 100)
  (tmp_path / 'b.jsonl.gz').write_bytes(data[: len(data) // 2])
  with pytest.raises(errors.UserError, match=r'b.jsonl.gz behind line \d'):
    sources.records(str(tmp_path / 'b.jsonl.gz'))
  with pytest.raises(errors.UserError, match='no data file'):
    sources.records(str(tmp_path / 'c.jsonl'))


def test_fingerprint_sees_every_part():
  document = examples.Document(
    'a', np.arange(3, dtype=np.int32), np.ones(3, bool)
  )
  base = examples.fingerprint([document])
  others = [
    examples.Document('b', document.tokens, document.is_answer),
    examples.Document('a', document.tokens + 1, document.is_answer),
    examples.Document('a', document.tokens, ~document.is_answer),
  ]
  assert base not in {examples.fingerprint([other]) for other in others}
