"""What is compiled is kept, and not longer than the sources that went into it stay as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CALLER = """
from hyperopt.engine.compiled import compiled
from callee import number

@compiled()
def asked():
    return number()
"""
CALLEE = """
from numba import njit

@njit
def number():
    return {}
"""
ASK = "import caller; print(caller.asked(), sum(caller.asked.stats.cache_hits.values()))"


def ask(folder: Path) -> list[str]:
    here = Path(__file__).parents[2]
    code = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(here)!r}]; {ASK}"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_a_caller_is_compiled_again_where_only_its_callee_has_changed(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "callee.py").write_text(CALLEE.format(1))
    assert ask(tmp_path) == ["1", "0"]
    assert ask(tmp_path) == ["1", "1"]
    (tmp_path / "callee.py").write_text(CALLEE.format(2))
    assert ask(tmp_path) == ["2", "0"]
