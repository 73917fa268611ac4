"""The formulas in float64, written from docs/semantics.md with NumPy alone: what the package is compared with."""
import numpy as np


def bf16(x):
    """The nearest bfloat16 numbers, as float64: by rounding the significand to 8 bits."""
    x = np.asarray(x, np.float64)
    significand, exponent = np.frexp(x)
    return np.ldexp(np.round(significand * 256) / 256, exponent)


def attention(q, k, v, *, scale=None, softcap=0, causal=False, offset=None, offsets=None, window_left=-1, window_right=-1,
              chunk=0, prefix_end=None, kv_start=None, kv_length=None, bias=None, bias_scale=None, mask=None, alibi_slopes=None,
              sinks=None):
    """out and lse, row by row."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    batch, heads, rows, dim = q.shape
    group = heads // k.shape[1]
    out = np.zeros((batch, heads, rows, v.shape[3]))
    lse = np.full((batch, heads, rows), -np.inf)
    wide = (batch, heads, rows, k.shape[2])
    bias = None if bias is None else np.broadcast_to(np.asarray(bias, np.float64), wide)
    mask = None if mask is None else np.broadcast_to(np.asarray(mask) != 0, wide)
    for b in range(batch):
        n = k.shape[2] if kv_length is None else int(kv_length[b])
        first = n - rows if offset is None else offset
        if offsets is not None:
            first = int(offsets[b])
        j = np.arange(n)
        for h in range(heads):
            for i in range(rows):
                p = i + first
                t = k[b, h // group, :n] @ q[b, h, i] * (1 / np.sqrt(dim) if scale is None else scale)
                if softcap:
                    t = softcap * np.tanh(t / softcap)
                if alibi_slopes is not None:
                    t = t - alibi_slopes[h] * np.abs(p - j)
                seen = np.ones(n, bool)
                if bias is not None:
                    seen &= bias[b, h, i, :n] != -np.inf
                    factor = 1 if bias_scale is None else bias_scale[h]
                    t = t + np.where(seen, bias[b, h, i, :n], 0) * factor
                if mask is not None:
                    seen &= mask[b, h, i, :n]
                if prefix_end is not None:
                    seen &= j <= max(p, prefix_end[b] - 1)
                elif causal:
                    seen &= j <= p
                if window_left >= 0:
                    seen &= j >= p - window_left
                if window_right >= 0:
                    seen &= j <= p + window_right
                if chunk:
                    seen &= j // chunk == p // chunk
                if kv_start is not None:
                    seen &= j >= kv_start[b]
                logits = t[seen] if sinks is None else np.append(t[seen], sinks[h])
                if logits.size == 0:
                    continue
                m = logits.max()
                total = np.exp(logits - m).sum()
                out[b, h, i] = np.exp(t[seen] - m) @ v[b, h // group, :n][seen] / total
                lse[b, h, i] = m + np.log(total)
    return out, lse


def softmax(x):
    x = np.asarray(x, np.float64)
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rope(x, angles, pairing='half_split', first_dim=0):
    """angles: [batch or 1, rows, pairs]."""
    y = np.array(x, np.float64)
    pairs = angles.shape[-1]
    c, s = np.cos(angles)[:, None], np.sin(angles)[:, None]
    if pairing == 'half_split':
        a, b = np.s_[..., first_dim:first_dim + pairs], np.s_[..., first_dim + pairs:first_dim + 2 * pairs]
    else:
        a, b = np.s_[..., first_dim:first_dim + 2 * pairs:2], np.s_[..., first_dim + 1:first_dim + 2 * pairs:2]
    y0, y1 = y[a].copy(), y[b].copy()
    y[a], y[b] = y0 * c - y1 * s, y0 * s + y1 * c
    return y


def sdpa(q, k, v, mask=None, is_causal=False, scale=None):
    """PyTorch's own formula, by broadcasting."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    t = q @ np.swapaxes(k, -1, -2) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        mask = np.tril(np.ones(t.shape[-2:], bool))
    if mask is not None:
        t = np.where(mask, t, -np.inf) if mask.dtype == bool else t + mask
    return softmax(t) @ v
