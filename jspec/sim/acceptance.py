# SPDX-License-Identifier: MIT
r"""How likely drafts are accepted: easy and hard requests, and tokens.

Each token of an answer has an easiness e, the probability that the target
agrees with a draft of it, given that all drafts before it were accepted:

  request r:   m_r ~ Beta(mean, between)           m_r near the mean: requests
  token t:     e_rt ~ Beta(m_r, within)            are alike (between is large)
  draft j:     accepted if  luck_rt < e_rt decay^(j-1)

with Beta(m, c) of mean m and concentration c (shapes m c and (1 - m) c). A
fixed depth only feels m_r. A policy that reads confidence gains what e_rt
varies around it: small `within` means tokens that are nearly certain or nearly
hopeless, and a drafter that knows which.

  survival  e .99 .97 .02 .99      mean .74, and yet two drafts are the right
            .99 .96 .02 .02        number to verify

Easiness and luck belong to (request, token), so every policy meets the same
ones wherever its rounds begin, and differences between policies are paired. A
rejected token is committed as the bonus and never drafted again.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from jspec import errors

_GRID = 512
# Easiness is never certain; that also keeps logarithms and logits finite.
_EDGE = 1e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Domain:
  """Requests of one kind.

  Attributes:
    mean: of easiness, over requests and tokens; in (0, 1).
    between: concentration over requests; large if they are alike.
    within: concentration over the tokens of a request; small if confidence
      knows a lot.
    decay: factor of easiness with every draft of a round, at most 1.
    weight: share of requests, relative to other domains.
  """

  mean: float
  between: float
  within: float
  decay: float = 1.0
  weight: float = 1.0

  def __post_init__(self):
    for name in ('between', 'within', 'weight'):
      if not 0 < getattr(self, name) < np.inf:
        raise errors.UserError(
          f'domain: {name}={getattr(self, name)}; give a positive number'
        )
    if not (0 < self.mean < 1 and 0 < self.decay <= 1):
      raise errors.UserError(
        f'domain: mean={self.mean} decay={self.decay}; give a mean between 0'
        ' and 1 and a decay of at most 1'
      )

  def tokens_per_round(self, num_drafts: int) -> float:
    """Of rounds that verify all drafts, the bonus included.

    Answers of one length take more rounds where drafts fail, so the mean over
    rounds is the harmonic one over requests.
    """
    easiness, weights = self._requests()
    return float(1 / np.sum(weights / self._tokens(easiness, num_drafts)))

  def in_flight(
    self, rng: np.random.Generator, number: int, num_drafts: int
  ) -> np.ndarray:
    """Mean easiness of requests met in rounds: hard ones stay longer."""
    easiness, weights = self._requests()
    weights = weights / self._tokens(easiness, num_drafts)
    return rng.choice(easiness, number, p=weights / weights.sum())

  def _tokens(self, easiness, num_drafts):
    step = np.arange(num_drafts)
    each = easiness[:, None] * self.decay**step
    return 1 + np.cumprod(each, axis=1).sum(axis=1)

  def _requests(self):
    """Easiness of requests and their weights: a grid over the Beta law.

    With x = sin(angle)^2 the density is bounded for shapes from a half on.
    """
    angle = (np.arange(_GRID) + 0.5) / _GRID * np.pi / 2
    a, b = self.mean * self.between, (1 - self.mean) * self.between
    log_w = (2 * a - 1) * np.log(np.sin(angle))
    log_w += (2 * b - 1) * np.log(np.cos(angle))
    weights = np.exp(log_w - log_w.max())
    return np.sin(angle) ** 2, weights / weights.sum()


def fit(
  tokens_per_round: float,
  num_drafts: int,
  *,
  between: float,
  within: float,
  decay: float = 1.0,
  weight: float = 1.0,
) -> Domain:
  """The domain that commits so many tokens a round when all is verified.

  Raises:
    UserError: 1 token a round or less, or more than the drafts allow.
  """
  if not 1 < tokens_per_round < num_drafts + 1:
    raise errors.UserError(
      f'{tokens_per_round} tokens a round with {num_drafts} drafts: give more'
      f' than 1 (the bonus) and less than {num_drafts + 1} (all accepted)'
    )

  def domain(mean):
    return Domain(
      mean=mean, between=between, within=within, decay=decay, weight=weight
    )

  low, high = _EDGE, 1 - _EDGE
  if domain(high).tokens_per_round(num_drafts) < tokens_per_round:
    raise errors.UserError(
      f'{tokens_per_round} tokens a round cannot be reached with decay {decay}'
      f' and {num_drafts} drafts; lower it or raise decay'
    )
  for _ in range(50):
    middle = (low + high) / 2
    if domain(middle).tokens_per_round(num_drafts) < tokens_per_round:
      low = middle
    else:
      high = middle
  return domain(middle)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Confidence:
  """What the drafter says of its drafts: logit = slope logit(e) + bias + noise.

  Attributes:
    slope: above 1 exaggerates.
    bias: above 0 is too sure of everything.
    noise: standard deviation. Noise is no calibration error alone: an extreme
      value then promises more than it keeps.
  """

  slope: float = 1.0
  bias: float = 0.0
  noise: float = 0.0

  def of(self, easiness: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Confidence of each token; easiness itself where nothing is wrong."""
    if self == Confidence():
      return easiness
    logit = np.log(easiness) - np.log1p(-easiness)
    logit = self.slope * logit + self.bias
    logit += self.noise * rng.standard_normal(easiness.shape)
    return np.clip(1 / (1 + np.exp(-logit)), _EDGE, 1 - _EDGE)


class Tokens(NamedTuple):
  """The answers of N requests, L tokens each.

  Attributes:
    easiness: [N, L].
    luck: [N, L], uniform; a draft with less luck than easiness is accepted.
    confidence: [N, L], what the policy sees instead of easiness.
    decay: [N].
  """

  easiness: np.ndarray
  luck: np.ndarray
  confidence: np.ndarray
  decay: np.ndarray


def draw(
  domains: tuple[Domain, ...],
  num_requests: int,
  num_tokens: int,
  *,
  confidence: Confidence = Confidence(),  # noqa: B008, frozen
  seed: int = 0,
) -> Tokens:
  """Draws answers; a request is the same however many others there are."""
  shares = np.array([domain.weight for domain in domains])
  shares = shares / shares.sum()
  shape = num_requests, num_tokens
  easiness, luck, seen = np.empty(shape), np.empty(shape), np.empty(shape)
  decay = np.empty(num_requests)
  for request in range(num_requests):
    rng = np.random.default_rng([seed, request])
    domain = domains[rng.choice(len(domains), p=shares)]
    easiness[request] = tokens_of(
      _beta(rng, domain.mean, domain.between, ()),
      domain.within,
      num_tokens,
      rng,
    )
    luck[request] = rng.random(num_tokens)
    seen[request] = confidence.of(easiness[request], rng)
    decay[request] = domain.decay
  return Tokens(easiness, luck, seen, decay)


def tokens_of(
  mean: float | np.ndarray,
  within: float,
  num_tokens: int,
  rng: np.random.Generator,
) -> np.ndarray:
  """Easiness of the tokens of requests with these means: [..., num_tokens]."""
  mean = np.asarray(mean)[..., None]
  return _beta(rng, mean, within, (*mean.shape[:-1], num_tokens))


def _beta(rng, mean, concentration, shape):
  mean = np.clip(mean, _EDGE, 1 - _EDGE)
  drawn = rng.beta(mean * concentration, (1 - mean) * concentration, shape)
  return np.clip(drawn, _EDGE, 1 - _EDGE)
