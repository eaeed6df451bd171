# SPDX-License-Identifier: MIT
"""What all training configs start from; `configs/train` changes the rest.

Imports nothing of the trainer, so that a config loads without JAX.
"""

import ml_collections

from jspec import config as config_lib

# A token no text uses stands for "not drafted yet". A target that is not here
# must be given one: a guess could be padding, or a word.
MASK_TOKEN_ID = {'smollm2_135m': 16}


def parse(arg: str | None) -> ml_collections.ConfigDict:
  """Reads a config's argument string.

  `target=NAME`, `smoke` (seconds instead of hours), `vocab=N` (the head scores
  the N most frequent tokens; 0 all), `online` (run the target in the step, keep
  no store).
  """
  return config_lib.parse_arg(
    arg, target='smollm2_135m', smoke=False, vocab=0, online=False
  )


def training(
  arg: ml_collections.ConfigDict, build: str, options: dict
) -> ml_collections.ConfigDict:
  """The config of a run.

  Args:
    arg: from `parse`.
    build: the builder, `module:attr`.
    options: what the builder reads.
  """
  config = ml_collections.ConfigDict()
  config.target = arg.target
  config.seed = 0
  config.num_steps = 20 if arg.smoke else 3000
  config.time_limit_s = 0.0
  config.tensorboard = False
  config.print_every = 1 if arg.smoke else 10

  config.remat = 'none'
  config.compute_dtype = 'float32'

  config.drafter = ml_collections.ConfigDict()
  config.drafter.build = build
  config.drafter.draft_vocab_size = arg.vocab or None
  config.drafter.init = ''
  config.drafter.options = ml_collections.ConfigDict(options)

  config.data = ml_collections.ConfigDict()
  config.data.answers = 'answers.jsonl.gz'
  config.data.sources = None
  config.data.weights = None
  config.data.chat_template_kwargs = None
  config.data.max_bad_records = 0
  config.data.max_retries = 3
  config.data.starving_s = 30.0
  config.data.mode = 'online' if arg.online else 'store'
  config.data.store = 'runs/taps_smoke' if arg.smoke else 'runs/taps'
  config.data.store_taps = None
  config.data.store_dtype = 'bfloat16'
  config.data.domains = None
  config.data.max_documents = 48 if arg.smoke else 0
  config.data.max_len = 512
  config.data.row_len = 512
  config.data.num_rows = 2 if arg.smoke else 4

  config.optim = ml_collections.ConfigDict()
  config.optim.name = 'adamw'
  config.optim.learning_rate = 6e-4
  config.optim.schedule = 'cosine'
  config.optim.min_ratio = 0.1
  config.optim.warmup_steps = 5 if arg.smoke else 100
  config.optim.decay_share = 0.2
  config.optim.decay_style = 'linear'
  config.optim.num_micro_batches = 1
  config.optim.weight_decay = 0.01
  config.optim.clip_norm = 1.0
  config.optim.ema_decay = 0.0

  config.mesh = ml_collections.ConfigDict()
  config.mesh.preset = 'dp'
  config.mesh.data = None
  config.mesh.fsdp = None
  config.mesh.model = None
  config.mesh.sequence = None
  config.mesh.expert = None

  config.eval = ml_collections.ConfigDict()
  config.eval.held_out = 0.1 if arg.smoke else 0.02
  config.eval.every = 10 if arg.smoke else 200
  config.eval.max_batches = 1 if arg.smoke else 8
  config.eval.prompts = ''
  config.eval.num_prompts = 2 if arg.smoke else 16
  config.eval.max_tokens = 16 if arg.smoke else 64

  config.checkpoint = ml_collections.ConfigDict()
  config.checkpoint.keep_latest = 2
  config.checkpoint.keep_best = 1

  config.profile = ml_collections.ConfigDict()
  config.profile.start = 10
  config.profile.num_steps = 0
  return config


def block(arg: ml_collections.ConfigDict, **changes) -> dict:
  """Options of a drafter of the DFlash family.

  Args:
    arg: from `parse`.
    **changes: other options, or other values; `loss` and `parts` are dicts.
  """
  options = {
    'num_layers': 1 if arg.smoke else 2,
    'num_taps': 2 if arg.smoke else 5,
    'mask_token_id': MASK_TOKEN_ID.get(arg.target),
    'block_size': 8,
    'label_shift': 0,
    'loss': {'num_anchors': 8 if arg.smoke else 64, 'mix': {'ce': 1.0}},
  }
  loss = {**options['loss'], **changes.pop('loss', {})}
  return {**options, 'loss': loss, **changes}
