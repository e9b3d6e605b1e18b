"""Loops over the paper's Algorithm 3 and over a proximal term; nothing of the package is imported."""

import numpy as np


def algorithm_3(w, gradients, *, lr, betas, eps, amsgrad, weight_decay=0.0, maximize=False):
    """Return w after every step of the Adam-style update, one coordinate at a time, as the paper writes it."""
    eta1, eta2 = betas
    w = np.array(w, dtype=np.float64)
    h, v_hat = np.zeros_like(w), np.zeros_like(w)
    history = []
    for gradient in gradients:
        for k in range(w.size):
            g = (-gradient[k] if maximize else gradient[k]) + weight_decay * w[k]
            h[k] = eta1 * h[k] + (1 - eta1) * g
            v = eta2 * v_hat[k] + (1 - eta2) * g**2
            v_hat[k] = max(v_hat[k], v) if amsgrad else v
            w[k] = w[k] - lr * h[k] / np.sqrt(eps + v_hat[k])
        history.append(w.copy())
    return np.array(history)


def proximal_sgd(w, gradients, *, lr, weight, every, average):
    """Return w after every step of w ← w - lr·(G + weight·(w - w_ref))."""
    w = np.array(w, dtype=np.float64)
    reference, since, history = w.copy(), [], []
    for gradient in gradients:
        if len(since) == every:
            reference = np.mean(since, axis=0) if average else w.copy()
            since = []
        since.append(w.copy())
        w = w - lr * (np.array(gradient) + weight * (w - reference))
        history.append(w.copy())
    return np.array(history)
