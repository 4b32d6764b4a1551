"""The documentation's generated parts: what the sources say of strategies and settings.

`python -m docs.generate` writes Markdown to docs/generated/, which pages include. Nothing is
described here: names, defaults and descriptions are read where the code has them.
"""
