"""How Sphinx builds the site: `make docs`."""

import re
from importlib import metadata

project = "mcfsim"
release = version = metadata.version("mcfsim")
copyright = "the mcfsim developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

html_theme = "furo"
html_title = "mcfsim"
html_static_path = ["_static"]
html_js_files = ["cards.js"]
html_css_files = ["site.css"]
html_extra_path = ["explorer"]  # a page of its own: explorer.html
exclude_patterns = ["explorer"]
html_show_sourcelink = False

# Headings can be linked to, as on the usual forges.
myst_heading_anchors = 4

default_role = "py:obj"  # a word in backticks is a name
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings give types
autodoc_class_signature = "mixed"
napoleon_use_ivar = True
suppress_warnings = ["ref.python"]  # of words in docstrings that more than one class has as an attribute
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True


def as_written(app, what, name, obj, options, lines):
    """Let absolute values in docstrings be no substitutions."""
    for place, line in enumerate(lines):
        parts = re.split(r"(``.*?``)", line)
        lines[place] = "".join(part if part.startswith("``") else part.replace("|", r"\|") for part in parts)


def setup(app):
    """Register what is above."""
    app.connect("autodoc-process-docstring", as_written)
