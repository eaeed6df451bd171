# SPDX-License-Identifier: MIT
"""What a compiled program costs, and whether that is worse than it was."""

from tests.tpu_compile.program import Program

# Compilers differ a little from one machine to the next; a pool that is copied
# or an intermediate that is kept shows as far more.
TOLERANCE = 0.1
SLACK_BYTES = 64 * 1024
MOST_OVER_FLOOR = 1.3
COMPARED = ('temp_bytes', 'bytes_accessed', 'flops')


def measure(compiled) -> dict[str, float]:
  """Memory and cost of one device, as the compiler counts them."""
  memory = compiled.memory_analysis()
  cost = compiled.cost_analysis()
  return {
    'temp_bytes': memory.temp_size_in_bytes,
    'argument_bytes': memory.argument_size_in_bytes,
    'output_bytes': memory.output_size_in_bytes,
    'alias_bytes': memory.alias_size_in_bytes,
    'code_bytes': memory.generated_code_size_in_bytes,
    'bytes_accessed': cost.get('bytes accessed', 0.0),
    'flops': cost.get('flops', 0.0),
  }


def judge(program: Program, result: dict, expected: dict | None) -> list[str]:
  """What is wrong with a result: nothing, or a line for each fault."""
  if program.fails_with is not None:
    faults = _own_faults(program, result)
    if any(program.fails_with in fault for fault in faults):
      return []
    return [f'a control must fail with {program.fails_with!r}, but: {faults}']
  faults = _own_faults(program, result)
  if 'error' in result:
    return faults
  if expected is None:
    return [*faults, 'not in the baseline: run with --update and read the diff']
  for name in COMPARED:
    allowed = expected[name] * (1 + TOLERANCE) + SLACK_BYTES
    if result[name] > allowed:
      faults.append(f'{name} {result[name]:.0f}, was {expected[name]:.0f}')
  return faults


def _own_faults(program, result):
  """Faults that show without a baseline."""
  if 'error' in result:
    return [result['error']]
  faults = []
  limit = program.max_temp_bytes
  if limit is not None and result['temp_bytes'] >= limit:
    faults.append(
      f'temp_bytes {result["temp_bytes"]} reach {limit}: something is copied or'
      ' kept that must not be'
    )
  floor = program.floor_bytes
  if floor is not None and result['bytes_accessed'] > MOST_OVER_FLOOR * floor:
    faults.append(
      f'bytes_accessed {result["bytes_accessed"]:.0f} exceed {MOST_OVER_FLOOR}'
      f' times the floor of {floor}'
    )
  return faults


def stale(baseline: dict, names: set[str]) -> list[str]:
  """Programs of the baseline that are gone."""
  return sorted(set(baseline) - names)
