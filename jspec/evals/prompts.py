# SPDX-License-Identifier: MIT
"""What results say about their prompts: domains, and which prompts they were.

`jspec.data.prompts` reads them.
"""

import hashlib
import json
from collections.abc import Sequence

from jspec.data import sources


def domain_of(prompt: sources.Prompt) -> str:
  """The domain of a prompt; '' for one that has none."""
  return prompt.domain


def digest(prompts: Sequence[sources.Prompt]) -> str:
  """16 hex digits that differ when the prompts or their order do."""
  text = json.dumps([[prompt.id, *prompt.turns] for prompt in prompts])
  return hashlib.sha256(text.encode()).hexdigest()[:16]
