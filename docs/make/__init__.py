"""The documentation site: its generated parts, its build, and a check of what came of it.

`python -m docs.make` writes Markdown to docs/generated/, which pages include, and builds site/.
Nothing is described here: names, defaults and descriptions are read where the code has them.
"""
