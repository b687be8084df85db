"""Side-by-side benchmarks: every figure stands beside another that was taken in the same run.

Run ``python -m bench --list`` and ``python -m bench NAME [--json]``. The package measures agent3 from outside and is no
part of what is installed.
"""
