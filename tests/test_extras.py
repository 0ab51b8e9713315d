import math
import sys

import pytest

from scalespaces._extras import require


@pytest.mark.parametrize("module", ["no_such_module", "no_such_package.module", "math.no_such_module"])
def test_a_missing_module_names_itself_and_the_extra(module):
    assert require("math", "plot") is math
    with pytest.raises(ImportError) as caught:
        require(module, "plot")
    message = "is needed for this and is not installed; install it with: pip install 'scalespaces[plot]'"
    assert (str(caught.value), caught.value.name) == (f"{module} {message}", module)


def test_an_installed_module_with_a_broken_import_keeps_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "installed_but_broken.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_module'"):
        require("installed_but_broken", "plot")
    assert "installed_but_broken" not in sys.modules
