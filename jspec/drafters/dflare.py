# SPDX-License-Identifier: MIT
"""DFlare: every draft layer reads its own depth of the target (2606.02091).

Draft layer l sees a softmax mix of the taps that starts at the depth that
corresponds to l, and turns it into keys and values by weights of its own, apart
from those of the slots. There is no projection over taps, so many of them (9 in
the paper) cost little.
"""

from jspec.drafters import block_method

METHOD = block_method.BlockMethod(
  name='dflare',
  fixed={'fusion': 'layer_mix', 'has_context_kv': True},
)
