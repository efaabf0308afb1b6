"""Bounds of attention's logits and of the entropy that they leave."""

import math


def largest_logit(head_width: int, query_gain: float = 1.0, key_gain: float = 1.0) -> float:
    """sqrt(K) g_q g_k: no |q k|/sqrt(K) is larger under norms of RMS 1 with these gains over a
    head of K channels. It is reached by a query and a key of one direction.
    """
    return math.sqrt(head_width) * query_gain * key_gain


def least_entropy(size: float, keys: int) -> float:
    """Least entropy, in nats, of a softmax over logits u of T keys with norm2(u) = s.

    ln(1 + (T - 1) b) + s sqrt(T (T - 1)) b/(1 + (T - 1) b) with b = exp(-s sqrt(T/(T - 1))), which
    u_1 = s sqrt((T - 1)/T) and all others -s/sqrt(T (T - 1)) attain. Zhai et al. 2023
    (2303.06296), theorem 3.1.
    """
    others = keys - 1
    share = math.exp(-size * math.sqrt(keys / others))
    rest = 1.0 + others * share
    return math.log(rest) + size * math.sqrt(keys * others) * share / rest
