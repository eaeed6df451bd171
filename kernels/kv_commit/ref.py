# SPDX-License-Identifier: MIT
"""Reference: writes accepted rows into the pages, one numpy loop per row."""

import numpy as np


def kv_commit(k_pages, v_pages, k, v, path, page_ids, lengths, num_rows):
  """Returns copies of the pages with the rows written, and the drop flag.

  Same contract as `api.kv_commit`, on numpy arrays; the specification.
  """
  k_pages, v_pages = np.array(k_pages), np.array(v_pages)
  page_size = k_pages.shape[3]
  dropped = False
  for row in range(path.shape[0]):
    for i in range(int(num_rows[row])):
      position = int(lengths[row]) + i
      slot = position // page_size
      page = page_ids[row, slot] if slot < page_ids.shape[1] else -1
      if page < 0:
        dropped = True
        continue
      node = path[row, i]
      k_pages[:, page, :, position % page_size] = k[:, row, node]
      v_pages[:, page, :, position % page_size] = v[:, row, node]
  return k_pages, v_pages, np.array(dropped)
