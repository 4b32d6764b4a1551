"""Pages as their tests read them."""

import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """A page's tags, which have to be closed in order, and what it loads and says of pictures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.titles: list[str] = []
        self.alternatives: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in {"src", "href"}]
        self.titles += [value or "" for name, value in attrs if name == "title"]
        self.alternatives += [value or "" for name, value in attrs if name == "alt"]
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in {"meta", "link", "img", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def words(page: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())
