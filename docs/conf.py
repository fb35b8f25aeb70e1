"""The site: `make docs` builds it into build/docs."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from fedfilt import __version__  # noqa: E402

project, author, release = "fedfilt", "The fedfilt developers", __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "reference"]
exclude_patterns = ["_ext"]

myst_heading_anchors = 4
highlight_language = "none"
smartquotes = False  # "word" is what a file has
default_role = "py:obj"  # in docstrings: `Graph` is a link if there is such a name, else code
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of other packages, and code in backticks

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
add_module_names = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"
viewcode_follow_imported_members = True

html_theme = "furo"
html_title = f"fedfilt {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1d5b9b", "color-brand-content": "#1d5b9b"},
    "dark_css_variables": {"color-brand-primary": "#7fb5ee", "color-brand-content": "#7fb5ee"},
}
