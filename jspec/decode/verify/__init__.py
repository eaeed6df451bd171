# SPDX-License-Identifier: MIT
"""Which draft tokens a round keeps: one rule a module, `api` in front."""
