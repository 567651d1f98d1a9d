"""Settings of Sphinx: `sphinx-build docs docs/_build` writes the pages as HTML."""

import mirrored_keras

project = "mirrored-keras"
version = release = mirrored_keras.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
autodoc_typehints = "description"
napoleon_use_ivar = True  # attributes of data classes are described once
html_theme = "alabaster"
