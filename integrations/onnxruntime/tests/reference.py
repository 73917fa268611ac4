"""Attention in float64, from its formula."""
import numpy as np


def attention(q, k, v, scale=None, softcap=0.0, visible=None, bias=None, sinks=None):
    """q [B,H,n,d], k and v [B,Hk,m,d]; visible, bias: broadcast to [B,H,n,m]. A row that sees no key is zeros."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    t = (q @ k.swapaxes(-1, -2)) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap:
        t = softcap * np.tanh(t / softcap)
    if bias is not None:
        t = t + np.asarray(bias, np.float64)
    if visible is not None:
        t = np.where(visible, t, -np.inf)
    most = t.max(-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        most = np.maximum(most, np.asarray(sinks, np.float64)[None, :, None, None])
    most = np.where(np.isfinite(most), most, 0)
    e = np.exp(t - most)
    total = e.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(np.asarray(sinks, np.float64)[None, :, None, None] - most)
    return (e / np.where(total == 0, 1, total)) @ v


def rotate(x, cos, sin, positions, interleaved):
    """x [B,H,n,d]; cos and sin [rows, r/2]; positions [B,n]."""
    x = np.asarray(x, np.float64)
    c, s = (np.asarray(t, np.float64)[positions][:, None] for t in (cos, sin))
    half, out = c.shape[-1], x.copy()
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    a, b = x[..., first], x[..., second]
    out[..., first], out[..., second] = a * c - b * s, a * s + b * c
    return out


def heads_first(x, heads):
    """[B,n,H*d] as [B,H,n,d]."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def heads_last(x):
    """[B,H,n,d] as [B,n,H*d]."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)
