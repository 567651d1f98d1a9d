"""The arithmetic of one training step: tensors in, tensors out. No strategy, no trainer, no file.

Legend: R replicas; G rows in the global batch; B rows on this replica (may be 0, the B sum to G).

    global batch (G rows)
      | split by tf.distribute                           replica r sees B rows
      v
    x, y, weights, mask -- forward --> predictions
      |
      v  TERMS   `terms.py`: one pair per loss           n = sum(loss * weight * mask), d = the reduction's divisor
    (n_1, d_1) ... (n_K, d_K)
      |  D_k = all-reduce SUM of d_k                     needs no gradient
      v  SCALE   `scale.py`: this replica's share        share = (B / G) * L_r
      |                                                  L_r = (G / B) * sum_k n_k / D_k + penalties
    gradients of the share
      |  all-reduce SUM, once                            `replica/collective.py`
      v
    clip, apply (the Keras optimizer)                    `replica/update.py`
      |
      v  TOTALS  (total, count) per logged number        `totals.py`: summed over replicas when read
"""
