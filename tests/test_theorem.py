"""Theorems 1 and 2 of the paper at work, on a problem small enough to know the true gradient."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from apmax import functional
from apmax.optim import PaperAdam, theorem_steps

ROWS, NUM_POS, BATCH, RUNS = 50, 5, 3, 16
BETAS, EPS = (0.9, 0.999), 1e-8
FLOOR = 1 / ROWS  # u₀ = C/n with C = ℓ_ii = margin² = 1
STYLES = ("sgd", "amsgrad")


def make_problem():
    """Features, scaled so that the first gradient is not small, and labels; the positives come first."""
    labels = np.zeros(ROWS)
    labels[:NUM_POS] = 1
    features = np.random.default_rng(0).normal(size=(ROWS, 3))
    features[:NUM_POS, 0] += 2
    features[:, -1] = 1
    return 8 * features, labels


FEATURES, LABELS = make_problem()


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def true_gradient(w):
    """Return ∇P for every row of w (runs, d): squared hinge with margin 1 on sigmoid scores, all pairs."""
    h = sigmoid(w @ FEATURES.T)
    gap = 1 + h[:, None, :] - h[:, :NUM_POS, None]
    g1, g2 = (gap**2 * LABELS).sum(-1, keepdims=True), (gap**2).sum(-1, keepdims=True)
    by_pair = (g1 / g2**2 - LABELS / g2) * 2 * gap / NUM_POS
    by_score = by_pair.sum(1)
    by_score[:, :NUM_POS] -= by_pair.sum(2)
    return (by_score * h * (1 - h)) @ FEATURES


def estimate(w, anchor, batch):
    """Return g̃ (runs, 2) and a function of u that gives the gradient estimate ∇g̃·∇f(u) (runs, d)."""
    x, y, own = FEATURES[batch], LABELS[batch], FEATURES[anchor]
    h, own_h = sigmoid(np.einsum("rbd,rd->rb", x, w)), sigmoid((own * w).sum(-1))
    gap = 1 + h - own_h[:, None]

    def gradient(u):
        by_pair = ((u[:, 0] / u[:, 1] ** 2)[:, None] - y / u[:, 1:]) * 2 * gap / batch.shape[1]
        of_batch = np.einsum("rb,rbd->rd", by_pair * h * (1 - h), x)
        return of_batch - (by_pair.sum(1) * own_h * (1 - own_h))[:, None] * own

    return np.stack([(gap**2 * y).mean(1), (gap**2).mean(1)], 1), gradient


class Soap:
    """Algorithm 1 in several independent runs at once: one anchor a step, B drawn from all data with replacement."""

    def __init__(self, steps, style, gamma=None, seed=0):
        self.lr, theorem_gamma = theorem_steps(NUM_POS, steps, betas=BETAS)
        self.gamma = theorem_gamma if gamma is None else gamma
        self.style = style
        self.rng = np.random.default_rng(seed)
        self.w = np.zeros((RUNS, FEATURES.shape[1]))
        self.h, self.v = np.zeros_like(self.w), np.zeros_like(self.w)
        starts = [estimate(self.w, np.full(RUNS, anchor), self.draw(ROWS, BATCH))[0] for anchor in range(NUM_POS)]
        self.u = np.stack(starts, 1)

    def draw(self, high, size):
        return self.rng.integers(0, high, (RUNS, size))

    def step(self):
        runs, anchor, batch = np.arange(RUNS), self.draw(NUM_POS, 1)[:, 0], self.draw(ROWS, BATCH)
        g, gradient_at = estimate(self.w, anchor, batch)
        u = (1 - self.gamma) * self.u[runs, anchor] + self.gamma * g
        u[:, 1] = np.maximum(u[:, 1], FLOOR)
        self.u[runs, anchor] = u
        self.update(gradient_at(u))
        return anchor, batch

    def update(self, gradient):
        if self.style == "sgd":
            self.w = self.w - self.lr * gradient
            return
        self.h = BETAS[0] * self.h + (1 - BETAS[0]) * gradient
        self.v = np.maximum(self.v, BETAS[1] * self.v + (1 - BETAS[1]) * gradient**2)
        self.w = self.w - self.lr * self.h / np.sqrt(EPS + self.v)


def scaled_mean_gradient(steps, style, gamma=None):
    """Return the mean of ‖∇P(w_t)‖² over 500 evenly spaced steps and all runs, times (T/n₊)^(2/5)."""
    soap, squares = Soap(steps, style, gamma), []
    for step in range(steps):
        if step % max(1, steps // 500) == 0:
            squares.append((true_gradient(soap.w) ** 2).sum(1).mean())
        soap.step()
    return np.mean(squares) * (steps / NUM_POS) ** 0.4


def growth(style, gamma=None):
    values = [scaled_mean_gradient(steps, style, gamma) for steps in (10**3, 10**4, 10**5)]
    return [later / earlier for earlier, later in pairwise(values)]


def test_the_problem_starts_away_from_a_stationary_point():
    assert np.linalg.norm(true_gradient(np.zeros((1, 3)))) >= 0.3


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_mean_squared_gradient_falls_as_the_theorem_says(style):
    assert max(growth(style)) <= 1.2


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_without_memory_it_does_not_fall_like_that(style):
    # The control: with γ = 1 every step trusts its own three examples, and the bias of a ratio of means stays.
    assert max(growth(style, gamma=1.0)) > 1.2


def test_the_true_gradient_is_that_of_the_exact_objective():
    w = torch.tensor([[0.1, -0.2, 0.05]], dtype=torch.float64, requires_grad=True)
    scores = torch.sigmoid(torch.tensor(FEATURES) @ w[0])
    functional.ap_objective(scores, torch.tensor(LABELS), "squared_hinge").backward()
    np.testing.assert_allclose(w.grad.numpy(), true_gradient(w.detach().numpy()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("style", STYLES)
def test_the_loop_of_this_test_is_the_packages_algorithm(style):
    soap = Soap(10**3, style)
    x, y = torch.tensor(FEATURES), torch.tensor(LABELS)
    u = torch.tensor(soap.u)  # (runs, anchors, 2)
    w = torch.nn.Parameter(torch.tensor(soap.w))
    if style == "sgd":
        optimizer = torch.optim.SGD([w], lr=soap.lr)
    else:
        optimizer = PaperAdam([w], lr=soap.lr, betas=BETAS, eps=EPS, amsgrad=True)
    for _ in range(30):
        anchors, batches = soap.step()
        total = torch.zeros((), dtype=torch.float64)
        for run, (anchor, batch) in enumerate(zip(anchors, batches, strict=True)):
            scores, own = torch.sigmoid(x[batch] @ w[run]), torch.sigmoid(x[anchor : anchor + 1] @ w[run])
            g = functional.inner(own, scores, y[batch], surrogate="squared_hinge")
            new = functional.moving_average(u[run, anchor][:, None], g.detach(), soap.gamma, floor=FLOOR)
            u[run, anchor] = new[:, 0]
            total = total + functional.compose(new, g)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    np.testing.assert_allclose(w.detach().numpy(), soap.w, rtol=0, atol=1e-12)
