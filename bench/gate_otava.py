"""Run by the Python of an environment that has apache-otava and not us: series in, whether each rises, out.

    echo '{"series": [[...]], "magnitude": 0.05}' | python bench/gate_otava.py
"""

import json
import sys

from otava.analysis import compute_change_points

asked = json.load(sys.stdin)
found = []
for series in asked["series"]:
    points, _ = compute_change_points(series, window_len=50, max_pvalue=0.001, min_magnitude=asked["magnitude"])
    found.append(any(point.stats.forward_rel_change() > 0 for point in points))
json.dump(found, sys.stdout)
