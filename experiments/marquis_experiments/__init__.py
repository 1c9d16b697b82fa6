"""Experiments of the papers, one folder per paper; `marquis reproduce NAME` runs them (see `common.study`)."""
